/* core/error.c: status names, the pending error, and faults of device work. */
#include "core/parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const status_names[] = {
    [MN_OK] = "ok",
    [MN_ERR_ARGUMENT] = "argument",
    [MN_ERR_SHAPE] = "shape",
    [MN_ERR_DTYPE] = "dtype",
    [MN_ERR_DEVICE] = "device",
    [MN_ERR_STATE] = "state",
    [MN_ERR_MEMORY] = "memory",
    [MN_ERR_IO] = "io",
    [MN_ERR_FORMAT] = "format",
    [MN_ERR_VERSION] = "version",
    [MN_ERR_MISMATCH] = "mismatch",
    [MN_ERR_NO_GRADIENT] = "no_gradient",
    [MN_ERR_COLLAPSED] = "collapsed",
    [MN_ERR_UNSUPPORTED] = "unsupported",
    [MN_ERR_CANCELLED] = "cancelled",
    [MN_ERR_INTERNAL] = "internal",
};

const char *mn_status_name(mn_status status)
{
    size_t index = (size_t)status;
    return index < sizeof status_names / sizeof *status_names ? status_names[index] : "unknown";
}

/* "prefix: text" into the error, whatever it held before. */
static void fill(mn_error *error, mn_status status, const char *prefix, const char *format,
                 va_list arguments) __attribute__((format(printf, 4, 0)));
static void fill(mn_error *error, mn_status status, const char *prefix, const char *format,
                 va_list arguments)
{
    char *text = error->message;
    error->status = status;
    snprintf(text, sizeof error->message, "%.400s%s", prefix, *prefix ? ": " : "");
    size_t used = strlen(text);
    if (vsnprintf(text + used, sizeof error->message - used, format, arguments) < 0)
        text[used] = '\0';
    /* Names that come from files or callers may hold anything; a message is one line. */
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
    }
}

mn_status mn_error_fill(mn_error *error, mn_status status, const char *format, ...)
{
    if (!error)
        return status;
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, "", format, arguments);
    va_end(arguments);
    return status;
}

mn_status mn_error_set(mn_error *error, mn_status status, const char *format, ...)
{
    if (!error)
        return status;
    if (error->status != MN_OK)
        return error->status;
    va_list arguments;
    va_start(arguments, format);
    fill(error, status, "", format, arguments);
    va_end(arguments);
    return status;
}

const char *mn_path_shown(const char *path)
{
    size_t length = strlen(path);
    return length > 200 ? path + length - 200 : path;
}

const char *mn_system_text(int code, char *buffer, size_t size)
{
    if (strerror_r(code, buffer, size) != 0)
        snprintf(buffer, size, "error %d", code);
    return buffer;
}

mn_status mn_error_system(mn_error *error, const char *path, const char *verb)
{
    char reason[128];
    return mn_error_fill(error, MN_ERR_IO, "%s: cannot %s: %s", mn_path_shown(path), verb,
                         mn_system_text(errno, reason, sizeof reason));
}

mn_status mn_fail(mn_context *context, mn_status status, const char *format, ...)
{
    if (!context)
        return status;
    if (context->error.status != MN_OK)
        return context->error.status;
    va_list arguments;
    va_start(arguments, format);
    fill(&context->error, status, mn_name_path(context), format, arguments);
    va_end(arguments);
    return status;
}

bool mn_ok(const mn_context *context)
{
    return mn_error_status(context) == MN_OK;
}

mn_status mn_error_status(const mn_context *context)
{
    return context ? context->error.status : MN_ERR_ARGUMENT;
}

const char *mn_error_message(const mn_context *context)
{
    return context ? context->error.message : "the context is NULL";
}

void mn_error_clear(mn_context *context)
{
    if (!context || context->closed || context->error.status == MN_OK)
        return;
    context->errors_cleared++;
    context->error.status = MN_OK;
    context->error.message[0] = '\0';
}

/* Adds to the text in the buffer what still fits. */
static void add(char *buffer, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void add(char *buffer, size_t size, const char *format, ...)
{
    size_t used = strlen(buffer);
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(buffer + used, size - used, format, arguments) < 0)
        buffer[used] = '\0';
    va_end(arguments);
}

const char *mn_tensor_describe(const mn_view *view, char *buffer, size_t size)
{
    if (size == 0)
        return "";
    snprintf(buffer, size, "%s", view && view->present ? "[" : "none");
    if (!view || !view->present)
        return buffer;
    for (int i = 0; i < view->ndim; i++)
        add(buffer, size, "%s%lld", i ? "," : "", (long long)view->shape[i]);
    add(buffer, size, "] %s", mn_dtype_name(view->dtype));
    return buffer;
}

mn_status mn_infer_error(mn_infer *infer, mn_status status, const char *format, ...)
{
    char text[480], inputs[480] = "", view[160];
    va_list arguments;
    if (!infer)
        return status;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        text[0] = '\0';
    va_end(arguments);
    for (int i = 0; i < infer->input_count && i < MN_MAX_INPUTS; i++)
        add(inputs, sizeof inputs, "%s%c %s", i ? ", " : " (", 'a' + i,
            mn_tensor_describe(&infer->in[i], view, sizeof view));
    if (*inputs)
        add(inputs, sizeof inputs, ")");
    return mn_fail(infer->context, status, "%s: %s%s", infer->op->name, text, inputs);
}

void mn_call_fault(const mn_call *call, mn_status status, const char *format, long long first,
                   long long second)
{
    /* Several threads of one kernel may get here; the host looks only after the work has ended, so
     * it is enough that a single one writes. */
    mn_status none = MN_OK;
    if (!__atomic_compare_exchange_n(&call->fault->status, &none, status, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    call->fault->op = call->op ? call->op->name : "";
    call->fault->format = format;
    call->fault->values[0] = first;
    call->fault->values[1] = second;
}

mn_status mn_check_fault(mn_context *context)
{
    mn_fault fault = *context->device->fault;
    char text[512] = "";
    int value = 0;
    if (fault.status == MN_OK)
        return context->error.status;
    *context->device->fault = (mn_fault){.status = MN_OK};
    /* The format comes from a kernel, so it is not given to printf. */
    for (const char *at = fault.format ? fault.format : ""; *at;) {
        bool number = strncmp(at, "%lld", 4) == 0 && value < 2;
        if (number)
            add(text, sizeof text, "%lld", fault.values[value++]);
        else
            add(text, sizeof text, "%c", *at);
        at += number ? 4 : 1;
    }
    return mn_fail(context, fault.status, "%s: %s", fault.op && *fault.op ? fault.op : "device",
                   text);
}
