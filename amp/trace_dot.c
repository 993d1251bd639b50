/* Traces as graphs in Graphviz's language. A call is node n<entry>; what no call of the trace has
 * made is node s<storage>. */
#include "amp/internal.h"
#include "core/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LABELLED = 100 }; /* calls, up to which edges have labels */

/* One use of a tensor. Sorted, those of a storage stand together, in the order of calls. */
typedef struct use {
    uint64_t storage;
    int64_t entry;
    bool made;     /* by the entry, or written in place; else read */
    int slot;      /* of the entry's tensors, inputs first */
    int64_t maker; /* the use that made it last before this one; -1: none in the trace */
} use;

typedef struct picture {
    const mn_trace *trace;
    mn_json_out out;
    mn_list uses;   /* use */
    mn_list places; /* place */
} picture;

/* Where an entry is drawn: in the cluster of its direction and layer. */
typedef struct place {
    const mn_trace_entry *entry;
    int64_t index;
} place;

mn_trace_dot_options mn_trace_dot_options_default(void)
{
    return (mn_trace_dot_options){.size = sizeof(mn_trace_dot_options), .legend = true};
}

/* ---- who made what --------------------------------------------------------------------------- */

static const mn_trace_entry *entry_at(const picture *p, int64_t index)
{
    return &((mn_trace_block **)p->trace->blocks.items)[index]->entry;
}

static use *use_at(const picture *p, int64_t index)
{
    return (use *)p->uses.items + index;
}

static const mn_trace_tensor *tensor_of(const picture *p, const use *u)
{
    return &entry_at(p, u->entry)->inputs[u->slot];
}

static int compare_uses(const void *left, const void *right)
{
    const use *a = left, *b = right;
    if (a->storage != b->storage)
        return a->storage < b->storage ? -1 : 1;
    if (a->entry != b->entry)
        return a->entry < b->entry ? -1 : 1;
    return a->made != b->made ? a->made - b->made : a->slot - b->slot;
}

static int compare_places(const void *left, const void *right)
{
    const place *a = left, *b = right;
    int layer = strcmp(a->entry->layer, b->entry->layer);
    if (a->entry->direction != b->entry->direction)
        return a->entry->direction < b->entry->direction ? -1 : 1;
    return layer != 0 ? layer : (a->index > b->index) - (a->index < b->index);
}

static bool list_entry(picture *p, int64_t index)
{
    const mn_trace_entry *entry = entry_at(p, index);
    const place here = {entry, index};
    bool room = mn_list_append(&p->places, &here, 1);
    for (int slot = 0; slot < entry->input_count + entry->output_count && room; slot++) {
        const mn_trace_tensor *tensor = &entry->inputs[slot];
        use u = {tensor->storage, index, false, slot, -1};
        if (tensor->present && slot < entry->input_count)
            room = mn_list_append(&p->uses, &u, 1);
        u.made = true;
        if (tensor->written && room)
            room = mn_list_append(&p->uses, &u, 1);
    }
    return room;
}

static bool analyse(picture *p)
{
    for (int64_t i = 0; i < p->trace->blocks.count; i++)
        if (!list_entry(p, i))
            return false;
    if (p->places.count > 0)
        qsort(p->places.items, (size_t)p->places.count, sizeof(place), compare_places);
    if (p->uses.count > 0)
        qsort(p->uses.items, (size_t)p->uses.count, sizeof(use), compare_uses);
    for (int64_t i = 1; i < p->uses.count; i++) {
        const use *before = use_at(p, i - 1);
        if (before->storage == use_at(p, i)->storage)
            use_at(p, i)->maker = before->made ? i - 1 : before->maker;
    }
    return true;
}

static const use *find_use(const picture *p, int64_t entry, int slot)
{
    const use wanted = {entry_at(p, entry)->inputs[slot].storage, entry, false, slot, -1};
    return bsearch(&wanted, p->uses.items, (size_t)p->uses.count, sizeof(use), compare_uses);
}

/* Of all that share the memory, the newest of the same shape: views come and go beside what
 * backward reads. NULL: nothing in the trace has made it. */
static const use *maker_of(const picture *p, const use *u)
{
    const mn_trace_tensor *read = tensor_of(p, u);
    for (int64_t at = u->maker; at >= 0; at = use_at(p, at)->maker) {
        const mn_trace_tensor *made = tensor_of(p, use_at(p, at));
        if (made->dtype == read->dtype && made->ndim == read->ndim &&
            memcmp(made->shape, read->shape, sizeof made->shape) == 0)
            return use_at(p, at);
    }
    return u->maker >= 0 ? use_at(p, u->maker) : NULL;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Dark text can be read on all of them. */
static const char *color_of(mn_dtype dtype)
{
    static const char *const colors[] = {
        [MN_F64] = "#d9c8f0", [MN_F32] = "#bfdcf7", [MN_F16] = "#ffcf87", [MN_BF16] = "#bfe5a5"};
    return mn_dtype_is_float(dtype) ? colors[dtype] : "#dddddd";
}

/* Part of a quoted string. Names may hold anything; Graphviz takes & for an entity. */
static void put_name(mn_json_out *out, const char *name)
{
    for (size_t length; *name; name += length > 0 ? length : 1) {
        length = mn_utf8_sequence(name, 4);
        if (length == 0 || (unsigned char)*name < 0x20 || *name == 0x7f)
            mn_put(out, "?");
        else if (*name == '&')
            mn_put(out, "&amp;");
        else if (*name == '"' || *name == '\\')
            mn_put(out, "\\%c", *name);
        else
            mn_put(out, "%.*s", (int)length, name);
    }
}

static void put_tensor(mn_json_out *out, const mn_trace_tensor *tensor)
{
    char text[160];
    mn_view view = {.present = true, .dtype = tensor->dtype, .ndim = tensor->ndim};
    memcpy(view.shape, tensor->shape, sizeof view.shape);
    mn_put(out, "%s", mn_tensor_describe(&view, text, sizeof text));
}

/* What comes from outside of the trace, where it is read first. */
static void put_sources(picture *p, const mn_trace_entry *entry, int64_t index)
{
    for (int slot = 0; slot < entry->input_count; slot++) {
        const mn_trace_tensor *tensor = &entry->inputs[slot];
        if (!tensor->present)
            continue;
        const use *u = find_use(p, index, slot), *first = p->uses.items;
        if (u > first && u[-1].storage == u->storage)
            continue;
        mn_put(&p->out, "s%" PRIu64 " [shape=%s,fillcolor=\"%s\",style=filled,label=\"",
               tensor->storage, *tensor->parameter ? "cylinder" : "oval", color_of(tensor->dtype));
        put_name(&p->out, tensor->parameter);
        mn_put(&p->out, *tensor->parameter ? "\\n" : "");
        put_tensor(&p->out, tensor);
        mn_put(&p->out, "\"];\n");
    }
}

/* The dtype of what it makes, or else of what it writes, or reads. */
static mn_dtype result_dtype(const mn_trace_entry *entry)
{
    const mn_trace_tensor *tensor = entry->inputs;
    if (entry->output_count > 0)
        return entry->outputs[0].dtype;
    for (int i = 0; i < entry->input_count; i++)
        if (entry->inputs[i].written)
            return entry->inputs[i].dtype;
    return entry->input_count > 0 ? tensor->dtype : MN_F32;
}

static void put_entry(picture *p, const mn_trace_entry *entry, int64_t index)
{
    static const char *const looks[] = {[MN_FORWARD] = "shape=box,style=filled",
                                        [MN_BACKWARD] = "shape=box,style=\"filled,rounded,dashed\"",
                                        [MN_UPDATE] = "shape=hexagon,style=filled"};
    mn_json_out *out = &p->out;
    bool is_cast = strcmp(entry->op, mn_ops[MN_OP_cast].name) == 0;
    mn_put(out, "n%" PRId64 " [%s,fillcolor=\"%s\"", index, looks[entry->direction],
           color_of(result_dtype(entry)));
    if (is_cast)
        mn_put(out, ",shape=oval,fontsize=8,height=0.2,width=0.3,margin=0.03");
    if (entry->is_cast)
        mn_put(out, ",color=\"#c00000\",penwidth=2");
    mn_put(out, ",label=\"");
    put_name(out, entry->op);
    if (is_cast && entry->output_count > 0)
        mn_put(out, " %s", mn_dtype_name(entry->outputs[0].dtype));
    if (entry->in_region && !entry->is_cast)
        mn_put(out, "\\n%s%s", mn_cast_rule_name(entry->rule),
               entry->overridden ? " (override)" : "");
    if (entry->served != MN_SERVED_KERNEL)
        mn_put(out, "\\n%s", mn_served_by_name(entry->served));
    mn_put(out, "\"];\n");
    put_sources(p, entry, index);
}

static void put_nodes(picture *p)
{
    static const char *const kinds[] = {"", "backward of ", "update of "};
    const place *at = p->places.items, *end = at + p->places.count;
    for (int cluster = 0; at < end; cluster++) {
        const mn_trace_entry *first = at->entry;
        bool framed = *first->layer != '\0';
        if (framed) {
            mn_put(&p->out,
                   "subgraph cluster_%d {color=\"#999999\";bgcolor=\"%s\";labeljust=l;label=\"%s",
                   cluster, first->direction == MN_FORWARD ? "#f8f8f8" : "#f0f0f0",
                   kinds[first->direction]);
            put_name(&p->out, first->layer);
            mn_put(&p->out, "\";\n");
        }
        for (; at < end && at->entry->direction == first->direction &&
               strcmp(at->entry->layer, first->layer) == 0;
             at++)
            put_entry(p, at->entry, at->index);
        mn_put(&p->out, framed ? "}\n" : "");
    }
}

/* Layout of a larger graph takes minutes if labels have to find a place, or if edges that cross the
 * picture have a say in it. */
static void put_edges(picture *p)
{
    const bool small = p->trace->blocks.count <= LABELLED;
    for (int64_t i = 0; i < p->trace->blocks.count; i++) {
        const mn_trace_entry *entry = entry_at(p, i);
        for (int slot = 0; slot < entry->input_count; slot++) {
            const mn_trace_tensor *tensor = &entry->inputs[slot];
            if (!tensor->present)
                continue;
            const use *maker = maker_of(p, find_use(p, i, slot));
            bool kept = maker && entry_at(p, maker->entry)->direction != entry->direction;
            if (maker)
                mn_put(&p->out, "n%" PRId64, maker->entry);
            else
                mn_put(&p->out, "s%" PRIu64, tensor->storage);
            mn_put(&p->out, " -> n%" PRId64 " [%s%s=\"", i,
                   !kept   ? ""
                   : small ? "style=dotted,"
                           : "style=dotted,constraint=false,",
                   small ? "label" : "tooltip");
            put_tensor(&p->out, tensor);
            mn_put(&p->out, "\"];\n");
        }
    }
}

static void put_legend(mn_json_out *out)
{
    mn_put(out, "subgraph cluster_legend {label=legend;labeljust=l;color=\"#999999\";\n");
    for (int t = MN_F64; t <= MN_I64; t++)
        mn_put(out, "l%d [shape=box,style=filled,fillcolor=\"%s\",label=\"%s\"];\n", t,
               color_of((mn_dtype)t), t == MN_I64 ? "integers" : mn_dtype_name((mn_dtype)t));
    mn_put(out,
           "l5 [shape=oval,color=\"#c00000\",penwidth=2,fontsize=8,label=\"cast by autocast\"];\n"
           "l6 [shape=box,style=\"rounded,dashed\",label=backward];\n"
           "l7 [shape=hexagon,label=update];\n"
           "l8 [shape=cylinder,label=parameter];\n"
           "l9 [shape=oval,label=\"other input\"];\n"
           "l10 [shape=plaintext,fontsize=8,label=\"dotted arrow:\\nkept from forward\"];\n}\n");
}

static void draw(picture *p, const mn_trace_dot_options *o)
{
    mn_put(&p->out, "digraph trace {\ngraph "
                    "[fontname=Helvetica,labelloc=t,newrank=true,nslimit=1,nslimit1=1,label=\"");
    put_name(&p->out, o->title ? o->title : "");
    mn_put(&p->out, "\"];\nnode [fontname=Helvetica,fontsize=11,height=0.3,margin=\"0.1,0.04\"];\n"
                    "edge [fontname=Helvetica,fontsize=8,color=\"#666666\"];\n");
    if (o->legend)
        put_legend(&p->out);
    put_nodes(p);
    put_edges(p);
    mn_put(&p->out, "}\n");
}

mn_status mn_trace_dot(const mn_trace *trace, const mn_trace_dot_options *options, char **text,
                       size_t *bytes)
{
    mn_trace_dot_options o = mn_trace_dot_options_default();
    if (text)
        *text = NULL;
    if (bytes)
        *bytes = 0;
    if (!trace)
        return MN_ERR_ARGUMENT;
    mn_context *context = trace->context;
    MN_TRY(mn_error_status(context));
    MN_TRY(mn_options_copy(&context->error, "mn_trace_dot", &o, sizeof o, options));
    if (!text || !bytes)
        return mn_fail(context, MN_ERR_ARGUMENT, "trace_dot: text or bytes is NULL");
    picture p = {.trace = trace,
                 .uses = mn_list_new(&context->allocator, sizeof(use)),
                 .places = mn_list_new(&context->allocator, sizeof(place))};
    mn_out_init(&p.out, &context->allocator);
    if (analyse(&p))
        draw(&p, &o);
    else
        p.out.failed = true;
    const char *drawn = mn_out_text(&p.out);
    if (drawn && (*text = mn_host_strdup(context, drawn)))
        *bytes = strlen(drawn) + 1;
    else
        mn_fail(context, MN_ERR_MEMORY, "trace_dot: no memory for the text");
    mn_out_free(&p.out);
    mn_list_free(&p.uses);
    mn_list_free(&p.places);
    return mn_error_status(context);
}
