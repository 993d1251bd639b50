/* Overrides of cast rules in a context, and their spelling "op=RULE,op=RULE". */
#include "amp/internal.h"

#include <stdio.h>
#include <string.h>

static int find_op(const char *name, size_t length)
{
    for (int i = 0; i < MN_OP_COUNT; i++) {
        if (strlen(mn_ops[i].name) == length && memcmp(mn_ops[i].name, name, length) == 0)
            return i;
    }
    return -1;
}

static int find_rule(const char *name, size_t length)
{
    for (int i = MN_CAST_KEEP; i <= MN_CAST_REFUSE; i++) {
        const char *known = mn_cast_rule_name((mn_cast_rule)i);
        if (strlen(known) == length && memcmp(known, name, length) == 0)
            return i;
    }
    return -1;
}

static mn_status check_rule(mn_context *context, int op, mn_cast_rule rule)
{
    if (rule != MN_CAST_FP32_OUT || mn_ops[op].rule[context->device->type] == MN_CAST_FP32_OUT)
        return MN_OK;
    return mn_fail(context, MN_ERR_ARGUMENT,
                   "autocast rules: %s has no f32 result of 16-bit input (FP32_OUT): use FP32",
                   mn_ops[op].name);
}

mn_status mn_autocast_set_rule(mn_context *context, const char *op, mn_cast_rule rule)
{
    MN_TRY(mn_error_status(context));
    int index = op ? find_op(op, strlen(op)) : -1;
    if (index < 0)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "autocast_set_rule: there is no op \"%.100s\" (see \"minim ops\")",
                       op ? op : "(NULL)");
    if (rule < MN_CAST_KEEP || rule > MN_CAST_REFUSE)
        return mn_fail(context, MN_ERR_ARGUMENT, "autocast_set_rule: there is no rule %d",
                       (int)rule);
    MN_TRY(check_rule(context, index, rule));
    mn_autocast *autocast = mn_autocast_state(context);
    if (!autocast)
        return mn_error_status(context);
    autocast->overridden[index] = true;
    autocast->rules[index] = rule;
    return MN_OK;
}

mn_status mn_autocast_reset_rules(mn_context *context)
{
    MN_TRY(mn_error_status(context));
    mn_autocast *autocast = context->slots[MN_SLOT_AMP].state;
    if (autocast)
        memset(autocast->overridden, 0, sizeof autocast->overridden);
    return MN_OK;
}

mn_status mn_autocast_rules_text(mn_context *context, char *buffer, size_t size)
{
    MN_TRY(mn_error_status(context));
    const mn_autocast *autocast = context->slots[MN_SLOT_AMP].state;
    size_t used = 0;
    if (size > 0)
        buffer[0] = '\0';
    for (int i = 0; i < MN_OP_COUNT && autocast; i++) {
        if (!autocast->overridden[i])
            continue;
        int length = snprintf(buffer + used, size - used, "%s%s=%s", used ? "," : "",
                              mn_ops[i].name, mn_cast_rule_name(autocast->rules[i]));
        if (length < 0 || (size_t)length >= size - used)
            return mn_fail(context, MN_ERR_ARGUMENT, "autocast rules do not fit %zu bytes", size);
        used += (size_t)length;
    }
    return MN_OK;
}

/* One "op=RULE" of the given length. */
static mn_status parse_rule(mn_context *context, mn_autocast *parsed, const char *text,
                            size_t length)
{
    const char *equals = memchr(text, '=', length);
    size_t op_length = equals ? (size_t)(equals - text) : length;
    int op = find_op(text, op_length);
    int rule = equals ? find_rule(equals + 1, length - op_length - 1) : -1;
    int shown = length < 100 ? (int)length : 100;
    if (op < 0)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "autocast rules: no such op in \"%.*s\" (see \"minim ops\")", shown, text);
    if (rule < 0)
        return mn_fail(
            context, MN_ERR_ARGUMENT,
            "autocast rules: \"%.*s\": want OP=RULE, with a rule of KEEP, LOWER (to 16 bit), "
            "FP32, FP32_OUT, PROMOTE and REFUSE",
            shown, text);
    MN_TRY(check_rule(context, op, (mn_cast_rule)rule));
    parsed->overridden[op] = true;
    parsed->rules[op] = (mn_cast_rule)rule;
    return MN_OK;
}

mn_status mn_autocast_set_rules(mn_context *context, const char *text)
{
    MN_TRY(mn_error_status(context));
    mn_autocast parsed = {.overridden = {false}};
    for (const char *at = text ? text : ""; *at;) {
        size_t length = strcspn(at, ",");
        MN_TRY(parse_rule(context, &parsed, at, length));
        at += length + (at[length] == ',');
    }
    mn_autocast *autocast = mn_autocast_state(context);
    if (!autocast)
        return mn_error_status(context);
    memcpy(autocast->overridden, parsed.overridden, sizeof parsed.overridden);
    memcpy(autocast->rules, parsed.rules, sizeof parsed.rules);
    return MN_OK;
}
