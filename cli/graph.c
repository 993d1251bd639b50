/* minim graph: one forward and backward pass of a model, op by op: a table, JSON or a picture. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* ---- the pass -------------------------------------------------------------------------------- */

/* What runs: on the context of the model. */
typedef struct pass {
    mn_context *context;
    mn_dataset *dataset;
    mn_loader *loader;
    mn_batch batch;
    mn_module *model;
    mn_optimizer *optimizer;
    mn_grad_scaler *scaler;
    mn_trace *trace;
} pass;

static mn_status open_data(pass *p, const settings *set, mn_error *error)
{
    mn_loader_options options = mn_loader_options_default();
    p->dataset = mn_dataset_open(set->data_given ? set->train.data : "synthetic:28x28x1:10", false,
                                 NULL, error);
    options.batch = set->batch_given ? set->train.batch : 2;
    options.prefetch = false;
    p->loader = p->dataset != NULL ? mn_loader_create(p->dataset, &options, error) : NULL;
    if (p->loader == NULL || mn_loader_start(p->loader, 0, 0, error) != MN_OK)
        return error->status;
    return mn_loader_next(p->loader, &p->batch, error);
}

static mn_status open_model(pass *p, const settings *set)
{
    const mn_train_options *o = &set->train;
    const mn_dataset_info info = mn_dataset_info_get(p->dataset);
    mn_model_options options = mn_model_options_default();
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_grad_scaler_options scaler = o->scaler;
    int count = 0;
    /* No data set has images that an int cannot measure: a batch of them would not fit. */
    options.height = (int)info.height;
    options.width = (int)info.width;
    options.channels = (int)info.channels;
    options.classes = info.classes;
    mn_autocast_set_rules(p->context, o->rules);
    p->model = mn_model_create(p->context, o->model, &options);
    mn_tensor *const *parameters = mn_module_parameters(p->model, &count);
    sgd.momentum = o->momentum;
    scaler.enabled = o->amp == MN_F16;
    if (p->model != NULL) {
        p->optimizer = mn_sgd_create(p->context, parameters, count, &sgd);
        p->scaler = mn_grad_scaler_create(p->context, &scaler);
    }
    return mn_error_status(p->context);
}

static void run_pass(pass *p, const settings *set)
{
    const mn_batch *b = &p->batch;
    const int64_t shape[4] = {b->count, b->height, b->width, b->channels};
    mn_tensor *images = mn_tensor_from(p->context, MN_F32, 4, shape, b->images);
    mn_tensor *labels = mn_tensor_from(p->context, MN_I64, 1, shape, b->labels);
    p->trace = mn_trace_begin(p->context, NULL);
    mn_autocast_begin(p->context, set->train.amp);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(p->model, images), labels, NULL);
    mn_autocast_end(p->context);
    if (!set->forward_only)
        mn_grad_scaler_backward(p->scaler, loss, 1.0);
    if (set->step) {
        mn_grad_scaler_step(p->scaler, p->optimizer, NULL);
        mn_grad_scaler_update(p->scaler);
    }
    mn_trace_end(p->trace);
}

static void close_pass(pass *p)
{
    mn_trace_free(p->trace);
    mn_grad_scaler_free(p->scaler);
    mn_optimizer_free(p->optimizer);
    mn_module_free(p->model);
    mn_context_free(p->context);
    mn_loader_free(p->loader);
    mn_dataset_free(p->dataset);
}

/* ---- table and JSON -------------------------------------------------------------------------- */

/* "f16 f16 -" of tensors into buffer. */
static const char *dtypes_of(const mn_trace_tensor *tensors, int count, char *buffer, size_t size)
{
    size_t used = 0;
    snprintf(buffer, size, "-");
    for (int i = 0; i < count && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%s", i > 0 ? " " : "",
                                 tensors[i].present ? mn_dtype_name(tensors[i].dtype) : "-");
    return buffer;
}

static void print_table(FILE *out, const mn_trace *trace)
{
    static const char format[] = "%-*s  %-*s  %-9s  %-13s  %-6s  %-*s  %-8s  %s\n";
    char in[80], made[40], rule[32];
    int op = 2, layer = 5, inputs = 2;
    mn_trace_entry e;
    for (int64_t i = 0; mn_trace_get(trace, i, &e); i++) {
        int lengths[3] = {(int)strlen(e.op), (int)strlen(e.layer),
                          (int)strlen(dtypes_of(e.inputs, e.input_count, in, sizeof in))};
        op = lengths[0] > op ? lengths[0] : op;
        layer = lengths[1] > layer ? lengths[1] : layer;
        inputs = lengths[2] > inputs ? lengths[2] : inputs;
    }
    fprintf(out, format, op, "op", layer, "layer", "direction", "rule", "region", inputs, "in",
            "out", "served by");
    for (int64_t i = 0; mn_trace_get(trace, i, &e); i++) {
        snprintf(rule, sizeof rule, "%s%s%s", e.is_cast ? "for " : "",
                 e.in_region ? mn_cast_rule_name(e.rule) : "-", e.overridden ? "*" : "");
        fprintf(out, format, op, e.op, layer, *e.layer != '\0' ? e.layer : "-",
                mn_direction_name(e.direction), rule, e.in_region ? mn_dtype_name(e.region) : "-",
                inputs, dtypes_of(e.inputs, e.input_count, in, sizeof in),
                dtypes_of(e.outputs, e.output_count, made, sizeof made),
                mn_served_by_name(e.served));
    }
    fprintf(out, "\nrule: what autocast did to the inputs; \"for\" it, a cast that it made; *: set "
                 "by --rules\n");
}

static void print_tensors_json(FILE *out, const char *key, const mn_trace_tensor *t, int count)
{
    fprintf(out, ",\"%s\":[", key);
    for (int i = 0; i < count; i++, t++) {
        fputs(i > 0 ? "," : "", out);
        if (!t->present) {
            fputs("null", out);
            continue;
        }
        fprintf(out, "{\"dtype\":\"%s\",\"shape\":[", mn_dtype_name(t->dtype));
        for (int axis = 0; axis < t->ndim; axis++)
            fprintf(out, "%s%lld", axis > 0 ? "," : "", (long long)t->shape[axis]);
        fprintf(out, "],\"storage\":%llu,\"written\":%s", (unsigned long long)t->storage,
                t->written ? "true" : "false");
        cli_json_text(out, "parameter", t->parameter);
        fputs("}", out);
    }
    fputs("]", out);
}

/* Rule and region are null outside of regions. */
static void print_json(FILE *out, const pass *p, const settings *set)
{
    mn_trace_entry e;
    fprintf(out, "{\"model\":\"%s\",\"amp\":\"%s\",\"batch\":%lld,\"lost\":%lld,\"entries\":[",
            set->train.model, cli_amp_name(set->train.amp), (long long)p->batch.count,
            (long long)mn_trace_lost(p->trace));
    for (int64_t i = 0; mn_trace_get(p->trace, i, &e); i++) {
        fprintf(out, "%s{\"op\":\"%s\"", i > 0 ? "," : "", e.op);
        cli_json_text(out, "layer", e.layer);
        cli_json_text(out, "direction", mn_direction_name(e.direction));
        cli_json_text(out, "backward_of", e.backward_of);
        cli_json_text(out, "rule", e.in_region ? mn_cast_rule_name(e.rule) : NULL);
        cli_json_text(out, "region", e.in_region ? mn_dtype_name(e.region) : NULL);
        fprintf(out, ",\"overridden\":%s,\"autocast\":%s,\"served\":\"%s\"",
                e.overridden ? "true" : "false", e.is_cast ? "true" : "false",
                mn_served_by_name(e.served));
        print_tensors_json(out, "inputs", e.inputs, e.input_count);
        print_tensors_json(out, "outputs", e.outputs, e.output_count);
        fputs("}", out);
    }
    fputs("]}\n", out);
}

/* ---- pictures -------------------------------------------------------------------------------- */

static int print_dot(FILE *out, const pass *p, const settings *set)
{
    mn_trace_dot_options options = mn_trace_dot_options_default();
    char title[200], *text;
    size_t bytes;
    snprintf(title, sizeof title, "%.100s, amp %s, batch %lld", set->train.model,
             cli_amp_name(set->train.amp), (long long)p->batch.count);
    options.title = title;
    if (mn_trace_dot(p->trace, &options, &text, &bytes) != MN_OK)
        return cli_fail("graph", mn_error_message(p->context));
    fputs(text, out);
    mn_buffer_free(p->context, text, bytes);
    return EXIT_OK;
}

/* Runs "dot -Tsvg" from one file into the other; no shell is asked. */
static int run_dot(FILE *in, FILE *out)
{
    char name[] = "dot", kind[] = "-Tsvg", *arguments[] = {name, kind, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 0;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0)
        return cli_fail("dot", strerror(error));
    posix_spawn_file_actions_adddup2(&actions, fileno(in), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    error = posix_spawnp(&child, name, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error == 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    if (error == ENOENT || (WIFEXITED(status) && WEXITSTATUS(status) == 127))
        return cli_fail("dot", "not found: SVG needs Graphviz; --format dot does without");
    if (error != 0 || status != 0)
        return cli_fail("dot", error != 0 ? strerror(error) : "Graphviz failed");
    return EXIT_OK;
}

static int print_svg(FILE *out, const pass *p, const settings *set)
{
    char piece[4096];
    FILE *dot = tmpfile(), *svg = tmpfile();
    int status = dot != NULL && svg != NULL ? EXIT_OK : cli_fail("graph", strerror(errno));
    if (status == EXIT_OK)
        status = print_dot(dot, p, set);
    if (status == EXIT_OK && (fflush(dot) != 0 || fseek(dot, 0, SEEK_SET) != 0))
        status = cli_fail("graph", strerror(errno));
    if (status == EXIT_OK)
        status = run_dot(dot, svg);
    if (status == EXIT_OK)
        rewind(svg);
    for (size_t n = 1; status == EXIT_OK && n > 0;) {
        n = fread(piece, 1, sizeof piece, svg);
        fwrite(piece, 1, n, out);
    }
    if (dot != NULL)
        fclose(dot);
    if (svg != NULL)
        fclose(svg);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

typedef enum form { TABLE, JSON, DOT, SVG, FORMS } form;

/* The one that was asked for, or that the file's name ends in; FORMS after a complaint. */
static form choose_form(const settings *set)
{
    static const char *const names[FORMS] = {"table", "json", "dot", "svg"};
    static const char *const endings[FORMS] = {".txt", ".json", ".dot", ".svg"};
    const char *name = set->json ? "json" : set->format;
    const char *dot = set->output != NULL && name == NULL ? strrchr(set->output, '.') : NULL;
    if (set->json && set->format != NULL && strcmp(set->format, "json") != 0) {
        cli_say(EXIT_USAGE, "--json and --format \"%.200s\" exclude each other", set->format);
        return FORMS;
    }
    form found = name == NULL && set->output == NULL ? TABLE : FORMS;
    for (int i = 0; i < FORMS; i++)
        if ((name != NULL && strcmp(name, names[i]) == 0) ||
            (dot != NULL && strcmp(dot, endings[i]) == 0))
            found = (form)i;
    if (found == FORMS && name != NULL)
        cli_say(EXIT_USAGE, "--format: expected table, json, dot or svg, got \"%.200s\"", name);
    else if (found == FORMS)
        cli_say(EXIT_USAGE,
                "--output: \"%.200s\" ends in none of .txt, .json, .dot and .svg: say --format",
                set->output);
    return found;
}

static int print(FILE *out, const pass *p, const settings *set, form what)
{
    if (what == DOT || what == SVG)
        return what == DOT ? print_dot(out, p, set) : print_svg(out, p, set);
    if (what == JSON)
        print_json(out, p, set);
    else
        print_table(out, p->trace);
    return EXIT_OK;
}

/* To the file, all of it or none, or to standard output. */
static int show(const pass *p, const settings *set, form what)
{
    char *text = NULL;
    size_t bytes = 0;
    mn_error error = {MN_OK, ""};
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL)
        return cli_fail("graph", strerror(errno));
    int status = print(out, p, set, what);
    if (fclose(out) != 0 && status == EXIT_OK)
        status = cli_fail("graph", strerror(errno));
    if (status == EXIT_OK && set->output == NULL)
        fwrite(text, 1, bytes, stdout);
    else if (status == EXIT_OK && mn_file_save(set->output, text, bytes, &error) != MN_OK)
        status = cli_fail_error("graph", &error);
    free(text);
    return status;
}

int cli_graph(settings *set)
{
    const form what = choose_form(set);
    pass p = {.context = NULL};
    mn_error error = {MN_OK, ""};
    if (what == FORMS)
        return EXIT_USAGE;
    if (set->step && set->forward_only)
        return cli_say(EXIT_USAGE, "--step needs the backward pass that --forward-only leaves out");
    int status = EXIT_OK;
    p.context = mn_context_create(&set->train.context, &error);
    if (p.context == NULL || open_data(&p, set, &error) != MN_OK)
        status = cli_fail_error("graph", &error);
    else if (open_model(&p, set) == MN_OK)
        run_pass(&p, set);
    if (status == EXIT_OK && mn_synchronize(p.context) != MN_OK)
        status = cli_fail("graph", mn_error_message(p.context));
    if (status == EXIT_OK)
        status = show(&p, set, what);
    close_pass(&p);
    return status;
}
