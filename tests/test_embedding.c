/* tests/test_embedding.c: what programs that embed the library bring along or take over: images
 * from a callback, an allocator, threads, a memory limit, checkpoints in memory. */
#include "tests/support_counting.h"
#include "tests/support_state.h"
#include "tests/support_suite.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 53, SIDE = 6, CHANNELS = 2, CLASSES = 3, PIXELS = SIDE * SIDE * CHANNELS };

/* ---- images from a callback ------------------------------------------------------------------ */

typedef struct feed {
    uint8_t images[COUNT * PIXELS];
    int64_t labels[COUNT];
    int64_t broken; /* this image cannot be had; -1: none */
    bool slow;      /* each takes a while */
    atomic_int inside, overlaps, calls;
} feed;

static bool get_image(void *user, int64_t index, uint8_t *image, int64_t *label)
{
    feed *from = user;
    if (atomic_fetch_add(&from->inside, 1) > 0)
        atomic_fetch_add(&from->overlaps, 1);
    atomic_fetch_add(&from->calls, 1);
    ck_assert(index >= 0 && index < COUNT);
    if (from->slow)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    memcpy(image, from->images + index * PIXELS, PIXELS);
    *label = from->labels[index];
    atomic_fetch_sub(&from->inside, 1);
    return index != from->broken;
}

static const int64_t shape[4] = {COUNT, SIDE, SIDE, CHANNELS};

static mn_dataset_source source_of(feed *from)
{
    mn_dataset_source source = mn_dataset_source_default();
    memset(from, 0, sizeof *from);
    from->broken = -1;
    for (int i = 0; i < COUNT; i++) {
        from->labels[i] = i % CLASSES;
        for (int j = 0; j < PIXELS; j++)
            from->images[i * PIXELS + j] =
                (uint8_t)(i % CLASSES * 60 + (i * 31 + j * 17) % 47 + j % CHANNELS * 20);
    }
    source.get = get_image;
    source.user = from;
    memcpy(source.shape, shape, sizeof shape);
    source.classes = CLASSES;
    return source;
}

static mn_dataset *fetched(const mn_dataset_source *source)
{
    mn_error error = {MN_OK, ""};
    mn_dataset *dataset = mn_dataset_from_callback(source, NULL, &error);
    ck_assert_msg(dataset != NULL, "%s", error.message);
    return dataset;
}

static void expect_source(const mn_dataset_source *source, mn_status status, const char *text)
{
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_dataset_from_callback(source, NULL, &error));
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.message, text) != NULL, "%s", error.message);
    ck_assert_ptr_null(mn_dataset_from_callback(source, NULL, NULL));
}

START_TEST(callback_set_is_described)
{
    static feed from;
    mn_dataset_source source = source_of(&from);
    mn_dataset *dataset = fetched(&source);
    mn_dataset_info info = mn_dataset_info_get(dataset);
    ck_assert(info.count == COUNT && info.height == SIDE && info.width == SIDE);
    ck_assert(info.channels == CHANNELS && info.classes == CLASSES);
    ck_assert_str_eq(info.name, "callback");
    ck_assert(!mn_dataset_get(dataset, 0, NULL, NULL));
    ck_assert_int_eq(from.calls, 0);
    mn_dataset_free(dataset);
    uint64_t before = info.fingerprint;
    char name[] = "my images";
    source.fingerprint = 7;
    source.name = name;
    dataset = fetched(&source);
    name[0] = '?';
    ck_assert_str_eq(mn_dataset_info_get(dataset).name, "my images");
    ck_assert(mn_dataset_info_get(dataset).fingerprint != before);
    mn_dataset_free(dataset);
    source.classes = 0;
    expect_source(&source, MN_ERR_ARGUMENT, "classes is 0");
    source.shape[2] = 0;
    expect_source(&source, MN_ERR_SHAPE, "width is 0");
    source.get = NULL;
    expect_source(&source, MN_ERR_ARGUMENT, "get is NULL");
    expect_source(NULL, MN_ERR_ARGUMENT, "get is NULL");
    source.size += 8;
    expect_source(&source, MN_ERR_ARGUMENT, "size");
}
END_TEST

/* The same batches and normalization as from memory, with a thread (_i) and without. */
START_TEST(callback_set_gives_what_memory_gives)
{
    static feed from;
    mn_batch a, b;
    mn_normalization n, m;
    mn_dataset_source source = source_of(&from);
    mn_dataset *one = fetched(&source);
    mn_dataset *two = mn_dataset_from_memory(from.images, from.labels, shape, CLASSES, NULL, NULL);
    ck_assert_int_eq(mn_dataset_normalization(one, 40, &n, NULL), MN_OK);
    ck_assert_int_eq(from.calls, 40);
    ck_assert_int_eq(mn_dataset_normalization(two, 40, &m, NULL), MN_OK);
    ck_assert_mem_eq(n.mean, m.mean, sizeof n.mean);
    ck_assert_mem_eq(n.deviation, m.deviation, sizeof n.deviation);
    mn_loader_options options = mn_loader_options_default();
    options.batch = 8;
    options.prefetch = _i;
    options.normalization = n;
    mn_loader *left = mn_loader_create(one, &options, NULL);
    mn_loader *right = mn_loader_create(two, &options, NULL);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        mn_loader_start(left, epoch, 0, NULL);
        mn_loader_start(right, epoch, 0, NULL);
        for (;;) {
            ck_assert_int_eq(mn_loader_next(left, &a, NULL), MN_OK);
            ck_assert_int_eq(mn_loader_next(right, &b, NULL), MN_OK);
            ck_assert_int_eq(a.count, b.count);
            if (a.count == 0)
                break;
            ck_assert_mem_eq(a.images, b.images, (size_t)a.count * PIXELS * sizeof(float));
            ck_assert_mem_eq(a.labels, b.labels, (size_t)a.count * sizeof(int64_t));
        }
    }
    ck_assert_int_eq(from.calls, 40 + 2 * COUNT);
    mn_loader_free(left);
    mn_loader_free(right);
    mn_dataset_free(one);
    mn_dataset_free(two);
}
END_TEST

static void expect_next(mn_loader *loader, mn_status status, const char *text)
{
    mn_batch batch;
    mn_error error = {MN_OK, ""};
    ck_assert_int_eq(mn_loader_next(loader, &batch, &error), status);
    ck_assert_msg(strstr(error.message, text) != NULL, "%s", error.message);
    ck_assert_int_eq(batch.count, 0);
}

/* The batches before the fault come, then the error, until the loader is started again. */
START_TEST(callback_that_fails)
{
    static feed from;
    mn_batch batch;
    mn_normalization n;
    mn_error error = {MN_OK, ""};
    mn_dataset_source source = source_of(&from);
    mn_dataset *dataset = fetched(&source);
    mn_loader_options options = mn_loader_options_default();
    options.batch = 8;
    options.shuffle = false;
    options.prefetch = _i;
    mn_loader *loader = mn_loader_create(dataset, &options, NULL);
    from.broken = 29;
    ck_assert_int_eq(mn_dataset_normalization(dataset, 0, &n, &error), MN_ERR_IO);
    ck_assert_msg(strstr(error.message, "image 29") != NULL, "%s", error.message);
    mn_loader_start(loader, 0, 0, NULL);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_OK);
    expect_next(loader, MN_ERR_IO, "data callback: image 29 is not to be had");
    from.broken = -1;
    expect_next(loader, MN_ERR_IO, "image 29");
    mn_loader_start(loader, 0, 24, NULL);
    ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_OK);
    ck_assert_int_eq(batch.count, 8);
    from.labels[50] = CLASSES;
    mn_loader_start(loader, 0, 48, NULL);
    expect_next(loader, MN_ERR_ARGUMENT, "label 50 is 3");
    mn_loader_free(loader);
    mn_dataset_free(dataset);
}
END_TEST

START_TEST(callback_is_never_called_twice_at_once)
{
    static feed from;
    mn_batch batch;
    mn_dataset_source source = source_of(&from);
    from.slow = true;
    mn_dataset *dataset = fetched(&source);
    mn_loader *loaders[2];
    for (int i = 0; i < 2; i++) {
        loaders[i] = mn_loader_create(dataset, NULL, NULL);
        ck_assert_int_eq(mn_loader_start(loaders[i], 0, 0, NULL), MN_OK);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mn_loader_next(loaders[i], &batch, NULL), MN_OK);
        ck_assert_int_eq(batch.count, COUNT);
        mn_loader_free(loaders[i]);
    }
    ck_assert_int_eq(from.overlaps, 0);
    mn_dataset_free(dataset);
}
END_TEST

/* ---- whole runs ------------------------------------------------------------------------------ */

static mn_train_options small_run(const mn_dataset *data)
{
    mn_train_options options = mn_train_options_default();
    options.train_set = data;
    options.test_set = data;
    options.model = "cnn-small";
    options.amp = MN_BF16;
    options.batch = 16;
    options.epochs = 2;
    options.lr = 0.01;
    options.context.threads = 1;
    return options;
}

/* Bit for bit, but for what a clock says. */
static void same_runs(const mn_train_result *a, const mn_train_result *b)
{
    ck_assert_int_eq(a->step_count, b->step_count);
    ck_assert_int_gt(a->step_count, 2);
    for (int64_t i = 0; i < a->step_count; i++) {
        const mn_step_result *x = &a->step_results[i], *y = &b->step_results[i];
        ck_assert_mem_eq(&x->loss, &y->loss, sizeof x->loss);
        ck_assert_mem_eq(&x->grad_norm, &y->grad_norm, sizeof x->grad_norm);
        ck_assert_int_eq(x->correct, y->correct);
    }
    ck_assert_int_eq(a->epoch_count, b->epoch_count);
    for (int64_t i = 0; i < a->epoch_count; i++)
        ck_assert_mem_eq(&a->epochs[i].test_loss, &b->epochs[i].test_loss, sizeof(double));
}

/* Trains, compares with the wanted result and frees both. */
static void check_run(const mn_train_options *options, const mn_train_result *wanted)
{
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    same_runs(result, wanted);
    mn_train_result_free(result);
}

/* Last index first, on the calling thread. */
static void backwards(void *user, int64_t count, void (*task)(void *arg, int64_t index), void *arg)
{
    ++*(int64_t *)user;
    for (int64_t i = count - 1; i >= 0; i--)
        task(arg, i);
}

typedef struct share {
    void (*task)(void *arg, int64_t index);
    void *arg;
    int64_t first, count;
} share;

static void *run_share(void *argument)
{
    share *s = argument;
    for (int64_t i = s->first; i < s->count; i += 3)
        s->task(s->arg, i);
    return NULL;
}

/* Three threads, every third index each. */
static void own_threads(void *user, int64_t count, void (*task)(void *arg, int64_t index),
                        void *arg)
{
    pthread_t threads[3];
    share shares[3];
    ++*(int64_t *)user;
    for (int i = 0; i < 3; i++) {
        shares[i] = (share){task, arg, i, count};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, run_share, &shares[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

START_TEST(runs_are_the_same_on_what_a_program_brings)
{
    static feed from;
    mn_dataset_source source = source_of(&from);
    mn_dataset *memory =
        mn_dataset_from_memory(from.images, from.labels, shape, CLASSES, NULL, NULL);
    mn_dataset *callback = fetched(&source);
    mn_train_options options = small_run(memory);
    mn_train_result *wanted = mn_train(&options, NULL);
    ck_assert_ptr_nonnull(wanted);
    options = small_run(callback);
    check_run(&options, wanted);
    ck_assert_int_gt(from.calls, 4 * COUNT);
    ck_assert_int_eq(from.overlaps, 0);

    int64_t sections = 0;
    mn_test_counter counter = {0};
    options = small_run(memory);
    options.context.allocator = mn_test_counting(&counter);
    options.context.parallel = backwards;
    options.context.parallel_user = &sections;
    options.context.threads = 3;
    check_run(&options, wanted);
    ck_assert_int_gt(sections, 0);
    ck_assert_int_gt(counter.calls, 0);
    ck_assert_int_eq(counter.blocks, 0);
    sections = 0;
    options.context.parallel = own_threads;
    check_run(&options, wanted);
    ck_assert_int_gt(sections, 0);
    mn_train_result_free(wanted);
    mn_dataset_free(memory);
    mn_dataset_free(callback);
}
END_TEST

START_TEST(runs_end_where_the_images_do)
{
    static feed from, tested;
    mn_error error = {MN_OK, ""};
    mn_dataset_source source = source_of(&from), other = source_of(&tested);
    mn_dataset *callback = fetched(&source), *test_set = fetched(&other);
    mn_train_options options = small_run(callback);
    options.test_set = test_set;
    tested.broken = 33;
    ck_assert_ptr_null(mn_train(&options, &error));
    ck_assert_int_eq(error.status, MN_ERR_IO);
    ck_assert_msg(strstr(error.message, "image 33") != NULL, "%s", error.message);
    ck_assert_int_gt(from.calls, 2 * COUNT - 10); /* the epoch before was trained */
    mn_dataset_free(test_set);
    mn_dataset_free(callback);
}
END_TEST

/* The smallest limit with which it works is found; below there is a clean error, and above it the
 * result is the same. */
START_TEST(memory_limit_is_kept)
{
    static feed from;
    mn_dataset_source source = source_of(&from);
    mn_dataset *callback = fetched(&source);
    mn_train_options options = small_run(callback);
    options.epochs = 1;
    mn_train_result *wanted = mn_train(&options, NULL);
    ck_assert_ptr_nonnull(wanted);
    int works = 0, fails = 0;
    for (uint64_t limit = 1024; works < 2; limit *= 4) {
        mn_test_counter counter = {0};
        mn_error error = {MN_OK, ""};
        options.context.allocator = mn_test_counting(&counter);
        options.context.memory_limit = limit;
        mn_train_result *result = mn_train(&options, &error);
        ck_assert_msg(result || error.status == MN_ERR_MEMORY, "%s", error.message);
        if (result)
            same_runs(result, wanted);
        mn_train_result_free(result);
        ck_assert_int_eq(counter.blocks, 0);
        works += result != NULL;
        fails += result == NULL;
    }
    ck_assert_int_gt(fails, 2);
    mn_train_result_free(wanted);
    mn_dataset_free(callback);
}
END_TEST

/* ---- checkpoints in memory ------------------------------------------------------------------- */

START_TEST(buffers_hold_what_files_hold)
{
    size_t size, bytes = 1;
    void *data = &size;
    mn_state_dict *dict = mn_test_state_sample(mn_test_context);
    ck_assert_int_eq(mn_state_dict_write(dict, mn_test_state_path), MN_OK);
    unsigned char *file = mn_test_slurp(&size);
    ck_assert_int_eq(mn_state_dict_to_buffer(dict, &data, &bytes), MN_OK);
    ck_assert_uint_eq(bytes, size);
    ck_assert_mem_eq(data, file, size);
    free(file);
    mn_state_dict *back = mn_state_dict_from_buffer(mn_test_context, data, bytes);
    ck_assert(back && mn_test_state_same(dict, back));
    mn_state_dict_free(back);
    mn_buffer_free(mn_test_context, data, bytes);
    mn_buffer_free(mn_test_context, NULL, 0);
    mn_buffer_free(NULL, NULL, 0);
    ck_assert_int_eq(mn_state_dict_to_buffer(dict, NULL, &bytes), MN_ERR_ARGUMENT);
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "data is NULL");
    ck_assert_int_eq(mn_state_dict_to_buffer(dict, &data, NULL), MN_ERR_ARGUMENT);
    data = &size;
    ck_assert_int_eq(mn_state_dict_to_buffer(dict, &data, &bytes), MN_ERR_ARGUMENT); /* pending */
    ck_assert_ptr_null(data);
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "bytes is NULL");
    ck_assert_ptr_null(mn_state_dict_from_buffer(mn_test_context, NULL, 8));
    mn_test_expect(mn_test_context, MN_ERR_ARGUMENT, "data is NULL");
    mn_state_dict_free(dict);
}
END_TEST

/* A buffer is one of the objects that keep a freed context's allocator in use. */
START_TEST(buffers_may_outlive_the_context)
{
    mn_test_counter counter = {0};
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    options.allocator = mn_test_counting(&counter);
    mn_context *ctx = mn_context_create(&options, NULL);
    mn_state_dict *dict = mn_test_state_sample(ctx);
    void *data;
    size_t bytes;
    ck_assert_int_eq(mn_state_dict_to_buffer(dict, &data, &bytes), MN_OK);
    mn_state_dict_free(dict);
    mn_context_free(ctx);
    ck_assert_int_gt(counter.blocks, 0);
    mn_buffer_free(ctx, data, bytes);
    ck_assert_int_eq(counter.blocks, 0);
}
END_TEST

START_TEST(versions_agree)
{
    int major = 0, minor = 0, patch = 0;
    ck_assert_int_eq(sscanf(mn_version(), "%d.%d.%d", &major, &minor, &patch), 3);
    ck_assert_int_eq(mn_version_number(), 10000 * major + 100 * minor + patch);
    ck_assert_int_eq(mn_version_number(), MN_VERSION_NUMBER);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("embedding");
    TCase *data = tcase_create("callback");
    tcase_add_test(data, callback_set_is_described);
    tcase_add_loop_test(data, callback_set_gives_what_memory_gives, 0, 2);
    tcase_add_loop_test(data, callback_that_fails, 0, 2);
    tcase_add_test(data, callback_is_never_called_twice_at_once);
    suite_add_tcase(suite, data);
    TCase *runs = tcase_create("runs");
    tcase_set_timeout(runs, 120);
    tcase_add_test(runs, runs_are_the_same_on_what_a_program_brings);
    tcase_add_test(runs, runs_end_where_the_images_do);
    tcase_add_test(runs, memory_limit_is_kept);
    suite_add_tcase(suite, runs);
    TCase *buffers = tcase_create("buffers");
    tcase_add_checked_fixture(buffers, mn_test_state_open, mn_test_state_close);
    tcase_add_test(buffers, buffers_hold_what_files_hold);
    tcase_add_test(buffers, buffers_may_outlive_the_context);
    tcase_add_test(buffers, versions_agree);
    suite_add_tcase(suite, buffers);
    return mn_test_run(suite, CK_FORK_GETENV);
}
