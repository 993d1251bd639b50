/* The shadow check of a model by name and of a checkpoint's. */
#include "tests/support_suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The row of the first batch norm, with ReLU or without. */
static const mn_shadow_row *batch_norm(const mn_shadow_report *r)
{
    ck_assert_ptr_nonnull(r);
    for (int64_t i = 0; i < r->row_count; i++)
        if (strncmp(r->rows[i].op, "batch_norm", 10) == 0 && strcmp(r->rows[i].layer, "bn1") == 0)
            return &r->rows[i];
    ck_abort_msg("no row of batch norm");
    return NULL;
}

START_TEST(models)
{
    mn_shadow_model_options o = mn_shadow_model_options_default();
    mn_error error;
    o.model = "cnn-small";
    o.data = "synthetic:12x12x1:3:40";
    o.batch = 16;
    o.check.batches = 4; /* 3 in an epoch */
    o.context.threads = 1;
    mn_shadow_report *r = mn_shadow_model(&o, &error);
    ck_assert_msg(r != NULL, "%s", error.message);
    ck_assert_int_eq(batch_norm(r)->compared, 4);
    ck_assert_int_eq(r->first, -1);
    mn_shadow_report_free(r);
    o.rules = "batch_norm=FP32";
    r = mn_shadow_model(&o, &error);
    ck_assert_int_eq(batch_norm(r)->dtype, MN_F32);
    mn_shadow_report_free(r);
    o.rules = "nothing=FP32";
    ck_assert_ptr_null(mn_shadow_model(&o, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    o.rules = NULL;
    o.batch = 0;
    ck_assert_ptr_null(mn_shadow_model(&o, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "--batch"));
    o.batch = 16;
    o.model = "nothing";
    ck_assert_ptr_null(mn_shadow_model(&o, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "nothing"));
    o.model = NULL;
    ck_assert_ptr_null(mn_shadow_model(&o, &error));
    o.checkpoint = "/nonexistent/file";
    ck_assert_ptr_null(mn_shadow_model(&o, &error));
    ck_assert_int_eq(error.status, MN_ERR_IO);
}
END_TEST

/* Where gradients meet, both runs add them by the same ops. */
START_TEST(sums_of_gradients)
{
    mn_shadow_model_options o = mn_shadow_model_options_default();
    mn_error error;
    o.model = "resnet8";
    o.data = "synthetic:8x8x3:10:8";
    o.batch = 4;
    o.context.threads = 1;
    o.check.dtype = MN_F16;
    mn_shadow_report *r = mn_shadow_model(&o, &error);
    ck_assert_msg(r != NULL, "%s", error.message);
    ck_assert_int_eq(r->unmatched, 0);
    int sums = 0;
    for (int64_t i = 0; i < r->row_count; i++)
        sums += r->rows[i].direction == MN_BACKWARD && strcmp(r->rows[i].op, "add") == 0 &&
                r->rows[i].dtype == MN_F16;
    ck_assert_int_eq(sums, 3);
    mn_shadow_report_free(r);
}
END_TEST

/* The check of a checkpoint takes model, data and rules from it, unless others are given. */
START_TEST(checkpoint)
{
    char path[64];
    mn_error error;
    snprintf(path, sizeof path, "/tmp/minim_shadow_%ld.safetensors", (long)getpid());
    mn_train_options train = mn_train_options_default();
    train.model = "cnn-small";
    train.data = "synthetic:12x12x1:3:64";
    train.steps = 2;
    train.rules = "batch_norm=FP32";
    train.checkpoint = path;
    train.context.threads = 1;
    mn_train_result_free(mn_train(&train, &error));
    mn_shadow_model_options o = mn_shadow_model_options_default();
    o.checkpoint = path;
    o.context.threads = 1;
    mn_shadow_report *r = mn_shadow_model(&o, &error);
    ck_assert_msg(r != NULL, "%s", error.message);
    ck_assert_int_eq(batch_norm(r)->dtype, MN_F32);
    mn_shadow_report_free(r);
    o.rules = "relu=FP32";
    r = mn_shadow_model(&o, &error);
    ck_assert_int_eq(batch_norm(r)->dtype, MN_BF16);
    mn_shadow_report_free(r);
    o.data = "synthetic:14x12x1:3:64";
    ck_assert_ptr_null(mn_shadow_model(&o, &error));
    ck_assert_int_eq(error.status, MN_ERR_MISMATCH);
    remove(path);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shadow model");
    TCase *tc = tcase_create("shadow model");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, models);
    tcase_add_test(tc, sums_of_gradients);
    tcase_add_test(tc, checkpoint);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
