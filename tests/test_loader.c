/* tests/test_loader.c: loaders: order, split, resume, prefetch, values, and memory that runs out
 * anywhere. */
#include "minim.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT  1000
#define PIXELS 4

/* Images [COUNT,1,2,2] that carry their index, so that a batch tells what is in it. */
static mn_dataset *numbered(void)
{
    static uint8_t images[COUNT * PIXELS];
    static int64_t labels[COUNT];
    const int64_t shape[4] = {COUNT, 1, 2, 2};
    for (int i = 0; i < COUNT; i++) {
        images[PIXELS * i] = (uint8_t)(i & 255);
        images[PIXELS * i + 1] = (uint8_t)(i >> 8);
        images[PIXELS * i + 2] = (uint8_t)(i * 7);
        images[PIXELS * i + 3] = 200;
        labels[i] = i % 10;
    }
    mn_dataset *dataset = mn_dataset_from_memory(images, labels, shape, 10, NULL, NULL);
    ck_assert_ptr_nonnull(dataset);
    return dataset;
}

static mn_loader *open_loader(const mn_dataset *dataset, const mn_loader_options *options)
{
    mn_error error = {MN_OK, ""};
    mn_loader *loader = mn_loader_create(dataset, options, &error);
    ck_assert_msg(loader != NULL, "%s", error.message);
    return loader;
}

static int64_t index_of(const float *image)
{
    return lrintf(image[0] * 255.0f) + 256 * lrintf(image[1] * 255.0f);
}

/* Reads an epoch from `position` to its end into order; returns how many images there were. */
static int64_t read_epoch(mn_loader *loader, int64_t epoch, int64_t position, int64_t largest,
                          int64_t *order)
{
    mn_batch batch;
    int64_t count = 0, last = largest;
    ck_assert_int_eq(mn_loader_start(loader, epoch, position, NULL), MN_OK);
    for (;;) {
        ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_OK);
        ck_assert_int_eq(batch.height * 100 + batch.width * 10 + batch.channels, 122);
        if (batch.count == 0)
            break;
        ck_assert_int_eq(last, largest); /* only the last batch may be smaller */
        ck_assert_int_le(batch.count, largest);
        for (int64_t i = 0; i < batch.count; i++) {
            order[count] = index_of(batch.images + PIXELS * i);
            ck_assert_int_eq(batch.labels[i], order[count] % 10);
            count++;
        }
        last = batch.count;
    }
    ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_OK);
    ck_assert_int_eq(batch.count, 0);
    ck_assert_int_eq(count, mn_loader_count(loader) - position);
    return count;
}

/* Whether order holds count different images, all marked `mark` in seen afterwards. */
static void mark_all(const int64_t *order, int64_t count, uint8_t *seen, uint8_t mark)
{
    for (int64_t i = 0; i < count; i++) {
        ck_assert_int_lt(order[i], COUNT);
        ck_assert_int_eq(seen[order[i]], 0);
        seen[order[i]] = mark;
    }
}

static bool same(const int64_t *a, const int64_t *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

START_TEST(epoch_covers_each_image_once)
{
    mn_dataset *dataset = numbered();
    mn_loader *loader = open_loader(dataset, NULL);
    mn_loader_options options = mn_loader_options_default();
    options.seed = 2;
    mn_loader *other = open_loader(dataset, &options);
    int64_t first[COUNT], order[COUNT];
    ck_assert_int_eq(read_epoch(loader, 0, 0, 64, first), COUNT);
    for (int64_t epoch = 0; epoch < 4; epoch++) {
        uint8_t seen[COUNT] = {0};
        mark_all(order, read_epoch(loader, epoch, 0, 64, order), seen, 1);
        ck_assert(same(order, first, COUNT) == (epoch == 0));
        int64_t in_place = 0; /* a random permutation leaves about one */
        for (int64_t i = 0; i < COUNT; i++)
            in_place += order[i] == i;
        ck_assert_int_lt(in_place, 12);
    }
    read_epoch(other, 0, 0, 64, order);
    ck_assert(!same(order, first, COUNT));
    ck_assert_double_ge(mn_loader_wait_seconds(loader), 0.0);
    mn_loader_free(loader);
    mn_loader_free(other);
    mn_dataset_free(dataset);
}
END_TEST

START_TEST(not_shuffled_is_index_order)
{
    mn_dataset *dataset = numbered();
    mn_loader_options options = mn_loader_options_default();
    options.shuffle = false;
    options.limit = 130;
    options.batch = 1000;
    mn_loader *loader = open_loader(dataset, &options);
    int64_t order[COUNT];
    ck_assert_int_eq(read_epoch(loader, 3, 0, 130, order), 130);
    for (int64_t i = 0; i < 130; i++)
        ck_assert_int_eq(order[i], i);
    mn_loader_free(loader);
    options.limit = 10 * COUNT;
    loader = open_loader(dataset, &options);
    ck_assert_int_eq(mn_loader_count(loader), COUNT);
    mn_loader_free(loader);
    mn_dataset_free(dataset);
}
END_TEST

START_TEST(split_is_disjoint_and_fixed)
{
    mn_dataset *dataset = numbered();
    mn_loader_options options = mn_loader_options_default();
    int64_t train[COUNT], held[COUNT], again[COUNT];
    options.validation = 0.1;
    options.limit = 900;
    mn_loader *trainer = open_loader(dataset, &options);
    options.held_out = true;
    options.shuffle = false;
    mn_loader *holder = open_loader(dataset, &options);
    ck_assert_int_eq(mn_loader_count(trainer), 810);
    ck_assert_int_eq(mn_loader_count(holder), 90);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        uint8_t seen[COUNT] = {0};
        read_epoch(trainer, epoch, 0, 64, train);
        read_epoch(holder, epoch, 0, 64, epoch == 0 ? held : again);
        mark_all(train, 810, seen, 1);
        mark_all(held, 90, seen, 2);
        for (int i = 0; i < COUNT; i++)
            ck_assert_int_eq(seen[i] != 0, i < 900);
        ck_assert(epoch == 0 || same(held, again, 90));
    }
    for (int i = 1; i < 90; i++)
        ck_assert_int_lt(held[i - 1], held[i]);
    ck_assert_int_gt(held[89] - held[0], 90); /* not a block */
    mn_loader_free(holder);
    options.seed = 5;
    holder = open_loader(dataset, &options);
    read_epoch(holder, 0, 0, 64, again);
    ck_assert(!same(held, again, 90));
    mn_loader_free(holder);
    mn_loader_free(trainer);
    mn_dataset_free(dataset);
}
END_TEST

START_TEST(split_leaves_no_part_empty)
{
    static const struct {
        int64_t limit;
        double validation;
        int64_t held;
    } cases[] = {{2, 0.01, 1}, {2, 0.99, 1}, {10, 0.999, 9}, {100, 0.29, 29}, {1000, 0.0004, 1}};
    mn_dataset *dataset = numbered();
    mn_loader_options options = mn_loader_options_default();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options.limit = cases[i].limit;
        options.validation = cases[i].validation;
        for (int held = 0; held < 2; held++) {
            options.held_out = held == 1;
            mn_loader *loader = open_loader(dataset, &options);
            ck_assert_int_eq(mn_loader_count(loader),
                             held ? cases[i].held : cases[i].limit - cases[i].held);
            mn_loader_free(loader);
        }
    }
    mn_error error;
    options.validation = 0.0;
    ck_assert_ptr_null(mn_loader_create(dataset, &options, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "holds out none"));
    mn_dataset_free(dataset);
}
END_TEST

/* Every position of an epoch, in both modes, goes on as the whole epoch would have. */
START_TEST(start_resumes_anywhere)
{
    mn_dataset *dataset = numbered();
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        mn_loader_options options = mn_loader_options_default();
        options.limit = 103;
        options.batch = 10;
        options.prefetch = prefetch == 1;
        mn_loader *loader = open_loader(dataset, &options);
        int64_t whole[103], rest[103];
        read_epoch(loader, 6, 0, 10, whole);
        for (int64_t position = 0; position <= 103; position++) {
            int64_t largest = position == 103 ? 0 : 10;
            int64_t count = read_epoch(loader, 6, position, largest, rest);
            ck_assert(same(whole + position, rest, count));
        }
        mn_loader_free(loader);
    }
    mn_dataset_free(dataset);
}
END_TEST

/* The same bytes from both modes, also when the caller is slow and the thread far ahead. */
START_TEST(prefetch_gives_the_same_batches)
{
    mn_dataset *dataset = numbered();
    mn_loader_options options = mn_loader_options_default();
    options.batch = 7;
    mn_loader *ahead = open_loader(dataset, &options);
    options.prefetch = false;
    mn_loader *direct = open_loader(dataset, &options);
    mn_batch a, b;
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        ck_assert_int_eq(mn_loader_start(ahead, epoch, 21, NULL), MN_OK);
        ck_assert_int_eq(mn_loader_start(direct, epoch, 21, NULL), MN_OK);
        for (int step = 0;; step++) {
            ck_assert_int_eq(mn_loader_next(ahead, &a, NULL), MN_OK);
            ck_assert_int_eq(mn_loader_next(direct, &b, NULL), MN_OK);
            if (step % 10 == 0)
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
            ck_assert_int_eq(a.count, b.count);
            if (a.count == 0)
                break;
            size_t values = (size_t)a.count * PIXELS;
            ck_assert_int_eq(memcmp(a.images, b.images, values * sizeof(float)), 0);
            ck_assert_int_eq(memcmp(a.labels, b.labels, (size_t)a.count * sizeof(int64_t)), 0);
        }
    }
    ck_assert_double_gt(mn_loader_wait_seconds(direct), 0.0);
    mn_loader_free(ahead);
    mn_loader_free(direct);
    mn_dataset_free(dataset);
}
END_TEST

/* Free and restart while the thread is filling, or waits for a free slot. */
START_TEST(interrupted_epochs_end_cleanly)
{
    mn_dataset *dataset = numbered();
    mn_loader_options options = mn_loader_options_default();
    options.batch = 3;
    for (int round = 0; round < 60; round++) {
        mn_loader *loader = open_loader(dataset, &options);
        mn_batch batch;
        int64_t order[COUNT];
        for (int restart = 0; restart < 3; restart++) {
            ck_assert_int_eq(mn_loader_start(loader, restart, 0, NULL), MN_OK);
            for (int i = 0; i < round % 7; i++)
                ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_OK);
            if (round % 5 == 0)
                nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        }
        if (round % 20 == 0)
            read_epoch(loader, 0, 1, 3, order);
        mn_loader_free(loader);
    }
    mn_loader_free(NULL);
    mn_dataset_free(dataset);
}
END_TEST

START_TEST(values_are_normalized)
{
    uint8_t images[256 * 3];
    static int64_t labels[128];
    const int64_t shape[4] = {128, 1, 2, 3};
    for (size_t i = 0; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 85 + i / 3);
    mn_dataset *dataset = mn_dataset_from_memory(images, labels, shape, 1, NULL, NULL);
    mn_loader_options options = mn_loader_options_default();
    options.batch = 128;
    options.shuffle = false;
    for (int given = 0; given < 2; given++) {
        if (given)
            options.normalization = (mn_normalization){3, {0.1f, 0.5f, 0.9f}, {0.25f, 1.0f, 3.0f}};
        mn_loader *loader = open_loader(dataset, &options);
        mn_batch batch;
        ck_assert_int_eq(mn_loader_start(loader, 0, 0, NULL), MN_OK);
        ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_OK);
        ck_assert_int_eq(batch.count, 128);
        for (size_t i = 0; i < sizeof images; i++) {
            double mean = given ? (double)options.normalization.mean[i % 3] : 0.0;
            double deviation = given ? (double)options.normalization.deviation[i % 3] : 1.0;
            double value = (images[i] / 255.0 - mean) / deviation;
            ck_assert_double_eq((double)batch.images[i], (double)(float)value);
        }
        mn_loader_free(loader);
    }
    mn_dataset_free(dataset);
}
END_TEST

static void expect_refusal(const mn_dataset *dataset, const mn_loader_options *options,
                           const char *text)
{
    mn_error error = {MN_OK, ""};
    ck_assert_ptr_null(mn_loader_create(dataset, options, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    ck_assert_msg(strstr(error.message, text) != NULL, "'%s' not in '%s'", text, error.message);
}

START_TEST(options_are_checked)
{
    mn_dataset *dataset = numbered();
    const mn_loader_options defaults = mn_loader_options_default();
    mn_loader_options options = defaults;
    expect_refusal(NULL, &defaults, "NULL");
    options.batch = 0;
    expect_refusal(dataset, &options, "batch is 0");
    options = defaults;
    options.limit = -1;
    expect_refusal(dataset, &options, "limit is -1");
    const double fractions[] = {-0.1, 1.0, (double)NAN, HUGE_VAL};
    for (int i = 0; i < 4; i++) {
        options = defaults;
        options.validation = fractions[i];
        expect_refusal(dataset, &options, "validation is");
    }
    const int channels[] = {-1, 1, 3, 5};
    for (int i = 0; i < 4; i++) {
        options = defaults;
        options.normalization.channels = channels[i];
        expect_refusal(dataset, &options, "the images have 2");
    }
    const float deviations[] = {0.0f, -1.0f, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        options = defaults;
        options.normalization = (mn_normalization){2, {0.0f, 0.0f}, {1.0f, deviations[i]}};
        expect_refusal(dataset, &options, "channel 1");
    }
    options = defaults;
    options.size = 0;
    expect_refusal(dataset, &options, "size is 0");
    options.size = sizeof options + 1;
    expect_refusal(dataset, &options, "mn_loader_options_default");
    mn_test_counter c = {0};
    options = defaults;
    options.allocator = mn_test_counting(&c);
    options.allocator.alloc = NULL;
    expect_refusal(dataset, &options, "allocator");
    mn_dataset_free(dataset);
}
END_TEST

START_TEST(calls_in_wrong_order_are_errors)
{
    mn_dataset *dataset = numbered();
    mn_loader *loader = open_loader(dataset, NULL);
    mn_batch batch;
    mn_error error;
    ck_assert_int_eq(mn_loader_next(loader, &batch, &error), MN_ERR_STATE);
    ck_assert_ptr_nonnull(strstr(error.message, "mn_loader_start"));
    ck_assert_int_eq(mn_loader_start(loader, -1, 0, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_loader_start(loader, 0, -1, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_loader_start(loader, 0, COUNT + 1, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_loader_start(NULL, 0, 0, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_loader_next(loader, &batch, NULL), MN_ERR_STATE);
    ck_assert_int_eq(mn_loader_next(NULL, &batch, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_loader_next(loader, NULL, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_loader_start(loader, 0, COUNT, &error), MN_OK);
    ck_assert_int_eq(mn_loader_next(loader, &batch, &error), MN_OK);
    ck_assert_int_eq(batch.count, 0);
    ck_assert_int_eq(mn_loader_count(NULL), 0);
    mn_loader_free(loader);
    mn_dataset_free(dataset);
}
END_TEST

/* The k-th allocation fails for k = 1, 2, ...; and once created, a loader allocates no more. */
START_TEST(exhausted_memory_is_an_error)
{
    mn_dataset *dataset = numbered();
    long k = 0;
    for (bool created = false; !created;) {
        mn_test_counter c = {.fail_at = ++k};
        mn_loader_options options = mn_loader_options_default();
        options.allocator = mn_test_counting(&c);
        options.validation = 0.5;
        mn_error error = {MN_OK, ""};
        mn_loader *loader = mn_loader_create(dataset, &options, &error);
        ck_assert_int_eq(error.status, loader ? MN_OK : MN_ERR_MEMORY);
        if (loader) {
            int64_t order[COUNT];
            long calls = c.calls;
            for (int64_t epoch = 0; epoch < 3; epoch++)
                read_epoch(loader, epoch, 0, 64, order);
            ck_assert_int_eq(c.calls, calls);
            created = true;
        }
        mn_loader_free(loader);
        ck_assert_int_eq(c.blocks, 0);
        ck_assert_uint_eq(c.bytes, 0);
    }
    ck_assert_int_gt(k, 10);
    mn_dataset_free(dataset);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("loader");
    TCase *tests = tcase_create("loader");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, epoch_covers_each_image_once);
    tcase_add_test(tests, not_shuffled_is_index_order);
    tcase_add_test(tests, split_is_disjoint_and_fixed);
    tcase_add_test(tests, split_leaves_no_part_empty);
    tcase_add_test(tests, start_resumes_anywhere);
    tcase_add_test(tests, prefetch_gives_the_same_batches);
    tcase_add_test(tests, interrupted_epochs_end_cleanly);
    tcase_add_test(tests, values_are_normalized);
    tcase_add_test(tests, options_are_checked);
    tcase_add_test(tests, calls_in_wrong_order_are_errors);
    tcase_add_test(tests, exhausted_memory_is_an_error);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
