/* tests/test_skips.c: telling skips that belong to loss scaling from trouble: the rule on sequences
 * of results, and the warnings of runs. */
#include "tests/support_suite.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW = MN_TROUBLE_ROW, RATE = MN_TROUBLE_RATE, LOW = MN_TROUBLE_LOW };

/* A letter a step, repeated by a number in front: a applied, s skipped, 1 or 5 with r: applied
 * after so many retries, g: the scale has grown before the next. */
static unsigned take(const char *steps, double scale, double min_scale, mn_skips *skips)
{
    mn_grad_scaler_options o = mn_grad_scaler_options_default();
    unsigned all = 0;
    o.init_scale = scale;
    o.min_scale = min_scale;
    *skips = (mn_skips){.applied = 0};
    for (char *end; *steps; steps++) {
        long count = strtol(steps, &end, 10);
        count = end == steps ? 1 : count;
        steps = end;
        if (*steps == 'g')
            scale *= 2;
        if (*steps == 'r')
            scale = ldexp(scale, (int)-count);
        for (long i = 0; i < (*steps == 'r' ? 1 : *steps == 'g' ? 0 : count); i++) {
            mn_step_result r = {
                .scale = scale, .skipped = *steps == 's', .retries = *steps == 'r' ? count : 0};
            all |= mn_skips_take(skips, &r, &o);
            if (r.skipped)
                scale = scale / 2 > min_scale ? scale / 2 : min_scale;
        }
    }
    return all;
}

static const struct {
    const char *steps;
    unsigned troubles;
    int64_t warmup, growth;
} sequences[] = {
    {"9a", 0, 0, 0},
    {"10s9a", 0, 10, 0}, /* the search from the start */
    {"16s9a", 0, 16, 0}, /* down to 1, where nothing overflows */
    {"17s9a", LOW, 17, 0},
    {"16r9a", 0, 0, 0},
    {"17r9a", LOW, 0, 0},
    {"3s3r9a", 0, 3, 0},
    {"3a1gs9a1gs9a", 0, 0, 2}, /* the rhythm of growth */
    {"3a1gs1a1gs1a1gs1a1gs1a1gs1a1gs1a1gs1a1gs1a1gs1a1gs1a1gs1a", 0, 0, 11},
    {"3a1g1ras9a", 0, 0, 0}, /* growth, retried */
    {"1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r1a1g1r", 0, 0, 0},
    {"3a1gass9a", 0, 0, 0}, /* later than growth: not its doing */
    {"as", 0, 0, 0},
    {"a3sa3sa", 0, 0, 0},
    {"a4sa", ROW, 0, 0},
    {"as3ra", ROW, 0, 0},
    {"a1gs3s", ROW, 0, 1},
    {"a3ra3ra", 0, 0, 0},
    {"a4ra", ROW, 0, 0},
    {"1sasasasasasasasasasasa", 0, 1, 0}, /* 10 of 21 */
    {"1sasasasasasasasasasasasa", RATE, 1, 0},
    {"asasasasasasasasasas90asa", 0, 0, 0}, /* the first has left the window */
    {"asasasasasasasasasas80asa", RATE, 0, 0},
    {"a1ra1ra1ra1ra1ra1ra1ra1ra1ra1r9a", 0, 0, 0},
    {"a1ra1ra1ra1ra1ra1ra1ra1ra1ra1ra1r9a", RATE, 0, 0},
};

START_TEST(rule)
{
    mn_skips s;
    unsigned troubles = take(sequences[_i].steps, 65536, 0, &s);
    ck_assert_msg(troubles == sequences[_i].troubles, "%s: %u", sequences[_i].steps, troubles);
    ck_assert_msg(s.warmup == sequences[_i].warmup && s.growth == sequences[_i].growth, "%s: %d %d",
                  sequences[_i].steps, (int)s.warmup, (int)s.growth);
}
END_TEST

START_TEST(rule_of_the_floor)
{
    mn_skips s;
    ck_assert_uint_eq(take("2sa", 1024, 128, &s), 0);
    ck_assert_uint_eq(take("3sa", 1024, 128, &s), MN_TROUBLE_FLOOR);
    ck_assert_uint_eq(take("a3ra", 1024, 128, &s), MN_TROUBLE_FLOOR);
    ck_assert_uint_eq(take("a", 128, 128, &s), 0); /* a scale that was meant to be fixed */
}
END_TEST

typedef struct told {
    int warnings, notices;
    char conditions[4][32];
} told;

static void on_log(void *user, const char *line)
{
    told *t = user;
    if (strncmp(line, "{\"event\":\"warning\",\"condition\":\"", 32) != 0)
        return;
    ck_assert_int_lt(t->warnings, 4);
    ck_assert_ptr_nonnull(strstr(line, "a diagnosis, not a sign of convergence"));
    sscanf(line + 32, "%31[a-z_]", t->conditions[t->warnings++]);
}

static void on_notice(void *user, const char *line)
{
    ck_assert_msg(strncmp(line, "step ", 5) == 0 && strlen(line) < 400, "%s", line);
    ((told *)user)->notices++;
}

/* Some steps' losses overflow at any scale. */
static mn_status poisoned_step(mn_step *step, void *user)
{
    if (*(const char *)user == 'r' ? step->step >= 2 && step->step <= 9
                                   : step->step > 1 && step->step % 2 == 0)
        step->weight *= 1e38;
    return mn_step_default(step, NULL);
}

START_TEST(warnings_of_a_run)
{
    static const struct {
        const char *poison;
        int64_t steps, growth;
        double init, min_scale;
        const char *conditions;
    } cases[] = {{"r", 12, 2000, 1024, 0, "skips_in_row"},
                 {"a", 28, 2000, 0x1p20, 0, "skip_rate"},
                 {"r", 20, 2000, 4, 0, "overflow_at_low_scale skips_in_row"},
                 {"r", 4, 2000, 1024, 256, "scale_at_floor"},
                 {"n", 40, 4, 0x1p30, 0, ""}};
    told t = {0};
    char all[160] = "";
    mn_train_options o = mn_train_options_default();
    o.data = "synthetic:12x12x1:4:40";
    o.validation = 0.0;
    o.batch = 8;
    o.lr = 0.005;
    o.amp = MN_F16;
    o.context.threads = 1;
    o.steps = cases[_i].steps;
    o.scaler.init_scale = cases[_i].init;
    o.scaler.growth_interval = cases[_i].growth;
    o.scaler.min_scale = cases[_i].min_scale;
    o.step = *cases[_i].poison == 'n' ? NULL : poisoned_step;
    o.step_user = (void *)(uintptr_t)cases[_i].poison;
    o.log = on_log;
    o.notice = on_notice;
    o.user = &t;
    mn_train_result *result = mn_train(&o, NULL);
    ck_assert_int_eq(result == NULL, cases[_i].min_scale > 0); /* the next overflow ends it */
    for (int i = 0; i < t.warnings; i++) {
        strcat(all, i ? " " : "");
        strcat(all, t.conditions[i]);
    }
    ck_assert_str_eq(all, cases[_i].conditions);
    ck_assert_int_eq(t.notices, t.warnings);
    if (_i == 4)
        ck_assert(result->skipped_warmup > 5 && result->skipped_growth > 0);
    mn_train_result_free(result);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("skips");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, rule, 0, (int)(sizeof sequences / sizeof *sequences));
    tcase_add_test(tests, rule_of_the_floor);
    tcase_add_loop_test(tests, warnings_of_a_run, 0, 5);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
