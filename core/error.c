/* core/error.c: status names, the pending error, and faults of device work. */
#include "core/parts.h"

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

/* Names that come from files or callers may hold anything; a message is one line. */
static void make_one_line(char *text)
{
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
    }
}

void mn_error_format(mn_error *error, mn_status status, const char *prefix, const char *format,
                     va_list arguments)
{
    char text[sizeof error->message];
    int length = vsnprintf(text, sizeof text, format, arguments);
    if (length < 0)
        text[0] = '\0';
    error->status = status;
    length =
        snprintf(error->message, sizeof error->message, "%.400s%s", prefix, *prefix ? ": " : "");
    size_t used = length < 0 ? 0 : (size_t)length;
    size_t room = sizeof error->message - used - 1;
    size_t wanted = strlen(text);
    if (wanted > room)
        wanted = room;
    memcpy(error->message + used, text, wanted);
    error->message[used + wanted] = '\0';
    make_one_line(error->message);
}

mn_status mn_error_set(mn_error *error, mn_status status, const char *format, ...)
{
    if (!error)
        return status;
    if (error->status != MN_OK)
        return error->status;
    va_list arguments;
    va_start(arguments, format);
    mn_error_format(error, status, "", format, arguments);
    va_end(arguments);
    return status;
}

mn_status mn_fail(mn_context *context, mn_status status, const char *format, ...)
{
    if (!context)
        return status;
    if (context->error.status != MN_OK)
        return context->error.status;
    va_list arguments;
    va_start(arguments, format);
    mn_error_format(&context->error, status, mn_name_path(context), format, arguments);
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

/* "(a [2,3] f32, b none)" */
static void list_inputs(const mn_infer *infer, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < infer->input_count && i < MN_MAX_INPUTS; i++) {
        char view[160];
        mn_tensor_describe(&infer->in[i], view, sizeof view);
        int length =
            snprintf(buffer + used, size - used, "%s%c %s", i ? ", " : " (", 'a' + i, view);
        if (length < 0 || (size_t)length >= size - used)
            return;
        used += (size_t)length;
    }
    if (used && used + 1 < size)
        memcpy(buffer + used, ")", 2);
}

mn_status mn_infer_error(mn_infer *infer, mn_status status, const char *format, ...)
{
    char text[480];
    char inputs[480];
    va_list arguments;
    if (!infer)
        return status;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        text[0] = '\0';
    va_end(arguments);
    list_inputs(infer, inputs, sizeof inputs);
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

/* Puts the values in place of %lld. The format comes from a kernel, so it is not given to printf.
 */
static void format_fault(const mn_fault *fault, char *buffer, size_t size)
{
    size_t used = 0;
    int value = 0;
    for (const char *at = fault->format ? fault->format : ""; *at && used + 1 < size;) {
        if (strncmp(at, "%lld", 4) == 0 && value < 2) {
            int length = snprintf(buffer + used, size - used, "%lld", fault->values[value++]);
            used += length > 0 ? (size_t)length : 0;
            at += 4;
        } else {
            buffer[used++] = *at++;
        }
    }
    buffer[used < size ? used : size - 1] = '\0';
}

mn_status mn_check_fault(mn_context *context)
{
    mn_fault *fault = context->device->fault;
    if (fault->status == MN_OK)
        return context->error.status;
    char text[512];
    format_fault(fault, text, sizeof text);
    mn_status status = fault->status;
    const char *op = fault->op && *fault->op ? fault->op : "device";
    *fault = (mn_fault){.status = MN_OK};
    return mn_fail(context, status, "%s: %s", op, text);
}

const char *mn_tensor_describe(const mn_view *view, char *buffer, size_t size)
{
    size_t used = 0;
    if (size == 0)
        return "";
    if (!view || !view->present) {
        snprintf(buffer, size, "none");
        return buffer;
    }
    buffer[0] = '\0';
    for (int i = 0; i < view->ndim; i++) {
        int length = snprintf(buffer + used, size - used, "%s%lld", i ? "," : "[",
                              (long long)view->shape[i]);
        if (length < 0 || (size_t)length >= size - used)
            return buffer;
        used += (size_t)length;
    }
    snprintf(buffer + used, size - used, "%s] %s", view->ndim ? "" : "[",
             mn_dtype_name(view->dtype));
    return buffer;
}
