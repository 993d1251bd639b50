/* tests/test_datasets.c: data sets (IDX files and every way they can be broken, synthetic,
 * from memory), and memory that runs out anywhere. */
#include "minim.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define FASHION "/usr/share/datasets/fashion-mnist"
#define IMAGES  "t10k-images-idx3-ubyte"
#define LABELS  "t10k-labels-idx1-ubyte"

/* ---- files ---------------------------------------------------------------------------------- */

static const uint8_t good_images[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0,   0,
                                      0, 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 255, 128};
static const uint8_t good_labels[] = {0, 0, 8, 1, 0, 0, 0, 3, 7, 0, 9};
static char folder[64], spec[96];

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static void write_gzip(const char *name, const char *mode, const void *data, unsigned size)
{
    gzFile file = gzopen(path_of(name), mode);
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(gzwrite(file, data, size), (int)size);
    ck_assert_int_eq(gzclose(file), Z_OK);
}

static size_t read_file(const char *name, uint8_t *data, size_t room)
{
    FILE *file = fopen(path_of(name), "rb");
    ck_assert_ptr_nonnull(file);
    size_t size = fread(data, 1, room, file);
    fclose(file);
    ck_assert_uint_lt(size, room);
    return size;
}

static void setup(void)
{
    snprintf(folder, sizeof folder, "/tmp/minim-datasets-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(spec, sizeof spec, "mnist:%s", folder);
    write_file(IMAGES, good_images, sizeof good_images);
    write_file(LABELS, good_labels, sizeof good_labels);
}

static void teardown(void)
{
    static const char *const names[] = {IMAGES, LABELS, IMAGES ".gz", LABELS ".gz"};
    for (int i = 0; i < 4; i++) {
        if (remove(path_of(names[i])) != 0)
            continue;
    }
    ck_assert_int_eq(rmdir(folder), 0);
}

/* Opening must fail with `status`, a message that holds `text`, and nothing leaked. */
static void expect_fault(const char *what, mn_status status, const char *text)
{
    mn_test_counter c = {0};
    mn_allocator allocator = mn_test_counting(&c);
    mn_error error = {MN_OK, ""};
    mn_dataset *dataset = mn_dataset_open(what, false, &allocator, &error);
    ck_assert_msg(dataset == NULL, "opened: %s", text);
    ck_assert_msg(error.status == status, "%d %s", (int)error.status, error.message);
    ck_assert_msg(strstr(error.message, text) != NULL, "'%s' not in '%s'", text, error.message);
    ck_assert_int_eq(c.blocks, 0);
    ck_assert_uint_eq(c.bytes, 0);
    ck_assert_ptr_null(mn_dataset_open(what, false, &allocator, NULL));
}

static uint64_t fingerprint_of(const char *what)
{
    mn_error error = {MN_OK, ""};
    mn_dataset *dataset = mn_dataset_open(what, false, NULL, &error);
    ck_assert_msg(dataset != NULL, "%s", error.message);
    uint64_t fingerprint = mn_dataset_info_get(dataset).fingerprint;
    mn_dataset_free(dataset);
    return fingerprint;
}

START_TEST(idx_reads_plain)
{
    mn_error error;
    mn_dataset *dataset = mn_dataset_open(spec, false, NULL, &error);
    ck_assert_ptr_nonnull(dataset);
    mn_dataset_info info = mn_dataset_info_get(dataset);
    ck_assert_int_eq(info.count, 3);
    ck_assert_int_eq(info.height * 100 + info.width * 10 + info.channels, 221);
    ck_assert_int_eq(info.classes, 10);
    ck_assert_str_eq(info.name, "mnist");
    const uint8_t *image;
    int64_t label;
    for (int i = 0; i < 3; i++) {
        ck_assert(mn_dataset_get(dataset, i, &image, &label));
        ck_assert_int_eq(memcmp(image, good_images + 16 + 4 * i, 4), 0);
        ck_assert_int_eq(label, good_labels[8 + i]);
    }
    ck_assert(!mn_dataset_get(dataset, 3, &image, &label));
    ck_assert(!mn_dataset_get(dataset, -1, &image, &label));
    ck_assert(!mn_dataset_get(NULL, 0, &image, &label));
    mn_dataset_free(dataset);
    mn_dataset_free(NULL);
    ck_assert_int_eq(mn_dataset_info_get(NULL).count, 0);
    expect_fault("mnist:/nonexistent", MN_ERR_IO, IMAGES);
}
END_TEST

START_TEST(idx_reads_gzip)
{
    uint64_t plain = fingerprint_of(spec);
    remove(path_of(IMAGES));
    remove(path_of(LABELS));
    write_gzip(IMAGES ".gz", "wb", good_images, sizeof good_images);
    write_gzip(LABELS ".gz", "wb", good_labels, 5);
    write_gzip(LABELS ".gz", "ab", good_labels + 5, sizeof good_labels - 5); /* second member */
    ck_assert_uint_eq(fingerprint_of(spec), plain);
}
END_TEST

START_TEST(fingerprint_sees_every_byte)
{
    uint64_t before = fingerprint_of(spec);
    uint8_t images[sizeof good_images], labels[sizeof good_labels];
    for (size_t i = 16; i < sizeof images; i++) {
        memcpy(images, good_images, sizeof images);
        images[i] ^= 1;
        write_file(IMAGES, images, sizeof images);
        ck_assert_uint_ne(fingerprint_of(spec), before);
    }
    write_file(IMAGES, good_images, sizeof good_images);
    memcpy(labels, good_labels, sizeof labels);
    labels[9] = 1;
    write_file(LABELS, labels, sizeof labels);
    ck_assert_uint_ne(fingerprint_of(spec), before);
    memcpy(images, good_images, sizeof images);
    images[11] = 1; /* 2x2 becomes 1x4: the same bytes in another shape */
    images[15] = 4;
    write_file(IMAGES, images, sizeof images);
    write_file(LABELS, good_labels, sizeof labels);
    ck_assert_uint_ne(fingerprint_of(spec), before);
}
END_TEST

START_TEST(idx_refuses_truncation)
{
    for (size_t n = 0; n < sizeof good_images; n++) {
        write_file(IMAGES, good_images, n);
        expect_fault(spec, MN_ERR_FORMAT, IMAGES ": ends at byte");
    }
    write_file(IMAGES, good_images, sizeof good_images);
    for (size_t n = 0; n < sizeof good_labels; n++) {
        write_file(LABELS, good_labels, n);
        expect_fault(spec, MN_ERR_FORMAT, LABELS ": ends at byte");
    }
}
END_TEST

START_TEST(idx_refuses_changed_headers)
{
    static const uint8_t flips[] = {1, 4, 0x40, 0x80, 0xff};
    uint8_t bytes[sizeof good_images];
    for (size_t i = 0; i < 16 * sizeof flips; i++) {
        memcpy(bytes, good_images, sizeof good_images);
        bytes[i % 16] ^= flips[i / 16];
        write_file(IMAGES, bytes, sizeof good_images);
        expect_fault(spec, MN_ERR_FORMAT, IMAGES);
    }
    write_file(IMAGES, good_images, sizeof good_images);
    for (size_t i = 0; i < 8 * sizeof flips; i++) {
        memcpy(bytes, good_labels, sizeof good_labels);
        bytes[i % 8] ^= flips[i / 8];
        write_file(LABELS, bytes, sizeof good_labels);
        expect_fault(spec, MN_ERR_FORMAT, LABELS);
    }
}
END_TEST

static void expect_image_header(uint32_t count, uint32_t rows, uint32_t columns, const char *text)
{
    uint8_t bytes[sizeof good_images];
    uint32_t sizes[] = {count, rows, columns};
    memcpy(bytes, good_images, sizeof bytes);
    for (int i = 0; i < 12; i++)
        bytes[4 + i] = (uint8_t)(sizes[i / 4] >> (24 - 8 * (i % 4)));
    write_file(IMAGES, bytes, sizeof bytes);
    expect_fault(spec, MN_ERR_FORMAT, text);
}

START_TEST(idx_refuses_wrong_content)
{
    expect_image_header(0, 2, 2, "byte 4: number of items is 0");
    expect_image_header(3, 0, 2, "byte 8: number of rows is 0");
    expect_image_header(3, 2, 0, "byte 12: number of columns is 0");
    expect_image_header(3, 2, 0xffffffff, "byte 12: number of columns is 4294967295");
    expect_image_header(0xffffffff, 32768, 32768, "ends at byte 28");
    expect_image_header(2, 3, 2, "3 labels for the 2 images");
    expect_image_header(1, 2, 2, "goes on after its 20 bytes");
    write_file(IMAGES, good_labels, sizeof good_labels);
    expect_fault(spec, MN_ERR_FORMAT, "byte 0: magic number 0x00000801");
    write_file(IMAGES, good_images, sizeof good_images);
    uint8_t labels[sizeof good_labels];
    memcpy(labels, good_labels, sizeof labels);
    labels[9] = 10;
    write_file(LABELS, labels, sizeof labels);
    expect_fault(spec, MN_ERR_FORMAT, "label 1 is 10, not in [0, 10)");
}
END_TEST

START_TEST(idx_refuses_what_is_no_file)
{
    remove(path_of(LABELS));
    expect_fault(spec, MN_ERR_IO, "neither " LABELS " nor " LABELS ".gz in");
    ck_assert_int_eq(mkdir(path_of(LABELS), 0700), 0);
    expect_fault(spec, MN_ERR_IO, "is a folder");
    ck_assert_int_eq(rmdir(path_of(LABELS)), 0);
    ck_assert_int_eq(mkfifo(path_of(LABELS), 0600), 0);
    expect_fault(spec, MN_ERR_IO, "is a device or pipe");
    char longest[6000] = "mnist:";
    memset(longest + 6, 'a', sizeof longest - 7);
    expect_fault(longest, MN_ERR_ARGUMENT, "too long");
    memset(longest + 6 + 3000, 0, 1);
    expect_fault(longest, MN_ERR_IO, "too long");
    expect_fault("mnist:/tmp/a\nb", MN_ERR_IO, "/tmp/a?b");
    expect_fault("fashion-mnist:/nonexistent", MN_ERR_IO, "package dataset-fashion-mnist");
}
END_TEST

START_TEST(gzip_damage_never_passes)
{
    uint8_t bytes[256];
    uint64_t good = fingerprint_of(spec);
    remove(path_of(IMAGES));
    write_gzip(IMAGES ".gz", "wb", good_images, sizeof good_images);
    size_t size = read_file(IMAGES ".gz", bytes, sizeof bytes);
    for (size_t n = 0; n < size; n++) {
        write_file(IMAGES ".gz", bytes, n);
        expect_fault(spec, MN_ERR_FORMAT, IMAGES ".gz: ");
    }
    long refused = 0;
    for (size_t i = 0; i < size * 8; i++) {
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        write_file(IMAGES ".gz", bytes, size);
        mn_error error;
        mn_dataset *dataset = mn_dataset_open(spec, false, NULL, &error);
        /* Time and system in gzip's header are under no checksum. */
        ck_assert(!dataset || mn_dataset_info_get(dataset).fingerprint == good);
        refused += dataset == NULL;
        mn_dataset_free(dataset);
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    ck_assert_int_gt(refused, (long)(size - 10) * 8);
    bytes[size] = 'x';
    write_file(IMAGES ".gz", bytes, size + 1);
    expect_fault(spec, MN_ERR_FORMAT, "bytes after the gzip data");
    bytes[size] = 0x1f;
    write_file(IMAGES ".gz", bytes, size + 1);
    expect_fault(spec, MN_ERR_FORMAT, "gzip data ends early");
}
END_TEST

/* A file that unpacks to more than the first chunk, and more than it promises. */
START_TEST(gzip_longer_than_promised)
{
    size_t size = 16 + 3u * 1200 * 1000;
    uint8_t *bytes = calloc(size + 1, 1);
    ck_assert_ptr_nonnull(bytes);
    static const uint8_t header[] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 4, 0xb0, 0, 0, 3, 0xe8};
    memcpy(bytes, header, sizeof header);
    for (size_t i = 16; i < size; i++)
        bytes[i] = (uint8_t)(i * i >> 7);
    remove(path_of(IMAGES));
    write_gzip(IMAGES ".gz", "wb1", bytes, (unsigned)size);
    mn_dataset *dataset = mn_dataset_open(spec, false, NULL, NULL);
    const uint8_t *image = NULL;
    ck_assert(mn_dataset_get(dataset, 0, &image, NULL));
    ck_assert_int_eq(memcmp(image, bytes + 16, size - 16), 0);
    mn_dataset_free(dataset);
    write_gzip(IMAGES ".gz", "wb1", bytes, (unsigned)size + 1);
    expect_fault(spec, MN_ERR_FORMAT, "goes on after its 3600016 bytes");
    write_gzip(IMAGES ".gz", "wb1", bytes, (unsigned)size - 1);
    expect_fault(spec, MN_ERR_FORMAT, "ends at byte 3600015 of 3600016");
    free(bytes);
}
END_TEST

START_TEST(fashion_mnist_if_installed)
{
    if (access(FASHION "/train-images-idx3-ubyte.gz", R_OK) != 0)
        return;
    mn_error error;
    mn_dataset *train = mn_dataset_open("fashion-mnist", true, NULL, &error);
    mn_dataset *test = mn_dataset_open("fashion-mnist:" FASHION, false, NULL, &error);
    ck_assert(train && test);
    mn_dataset_info info = mn_dataset_info_get(train);
    ck_assert_int_eq(info.count, 60000);
    ck_assert_int_eq(mn_dataset_info_get(test).count, 10000);
    int64_t label;
    ck_assert(mn_dataset_get(train, 0, NULL, &label));
    ck_assert_str_eq(info.class_names[label], "Ankle boot");
    mn_normalization normalization;
    ck_assert_int_eq(mn_dataset_normalization(train, 0, &normalization, &error), MN_OK);
    ck_assert_double_eq_tol((double)normalization.mean[0], 0.2860, 5e-5);
    ck_assert_double_eq_tol((double)normalization.deviation[0], 0.3530, 5e-5);
    mn_dataset_free(train);
    mn_dataset_free(test);
}
END_TEST

/* ---- names, synthetic, memory, normalization ------------------------------------------------- */

START_TEST(names_are_enough_to_open_again)
{
    static const char *const names[][2] = {
        {"synthetic:8x9x1:10", "synthetic:8x9x1:10"},
        {"synthetic:0008x9x1:10:20", "synthetic:8x9x1:10:20"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        mn_dataset *dataset = mn_dataset_open(names[i][0], true, NULL, NULL);
        ck_assert_str_eq(mn_dataset_info_get(dataset).name, names[i][1]);
        mn_dataset_free(dataset);
    }
}
END_TEST

START_TEST(specs_are_checked)
{
    static const char *const wrong[] = {
        "",
        "cifar",
        "mnist",
        "mnist:",
        "mnistx:/tmp",
        "fashion-mnist:",
        "synthetic",
        "synthetic:",
        "synthetic:8x8:10",
        "synthetic:8x8x1",
        "synthetic:8x8x1:",
        "synthetic:0x8x1:10",
        "synthetic:8x8x1:10:",
        "synthetic:8x8x1:10:0",
        "synthetic:8x8x1:10:5 ",
        "synthetic:8x8x1:10:5:5",
        "synthetic:-8x8x1:10",
        "synthetic: 8x8x1:10",
        "synthetic:99999999999999999999x8x1:10",
        "synthetic:4097x8x1:10",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        expect_fault(wrong[i], MN_ERR_ARGUMENT, "");
    expect_fault(NULL, MN_ERR_ARGUMENT, "no data set named");
    expect_fault("x", MN_ERR_ARGUMENT, "synthetic:HxWxC:CLASSES");
    mn_test_counter c = {0};
    mn_allocator half = mn_test_counting(&c);
    half.free = NULL;
    mn_error error;
    ck_assert_ptr_null(mn_dataset_open("synthetic:8x8x1:2:4", true, &half, &error));
    ck_assert_int_eq(error.status, MN_ERR_ARGUMENT);
    expect_fault("synthetic:4096x4096x64:2:1000000000", MN_ERR_MEMORY, "no memory");
}
END_TEST

/* Shares of a test set that a nearest-mean classifier learned on the training set gets right. */
static double nearest_mean_accuracy(const mn_dataset *train, const mn_dataset *test)
{
    enum { CLASSES = 10, PIXELS = 12 * 9 * 3 };
    static double means[CLASSES][PIXELS];
    mn_dataset_info info = mn_dataset_info_get(train);
    const uint8_t *image;
    int64_t label, right = 0, count = mn_dataset_info_get(test).count;
    memset(means, 0, sizeof means);
    for (int64_t i = 0; mn_dataset_get(train, i, &image, &label); i++) {
        for (int p = 0; p < PIXELS; p++)
            means[label][p] += (double)image[p] * CLASSES / (double)info.count;
    }
    for (int64_t i = 0; mn_dataset_get(test, i, &image, &label); i++) {
        double best = HUGE_VAL;
        int guess = -1;
        for (int k = 0; k < CLASSES; k++) {
            double distance = 0.0;
            for (int p = 0; p < PIXELS; p++)
                distance += (image[p] - means[k][p]) * (image[p] - means[k][p]);
            if (distance < best) {
                best = distance;
                guess = k;
            }
        }
        right += guess == label;
    }
    return (double)right / (double)count;
}

START_TEST(synthetic_is_fixed_and_learnable)
{
    mn_dataset *train = mn_dataset_open("synthetic:12x9x3:10", true, NULL, NULL);
    mn_dataset *again = mn_dataset_open("synthetic:12x9x3:10", true, NULL, NULL);
    mn_dataset *test = mn_dataset_open("synthetic:12x9x3:10", false, NULL, NULL);
    mn_dataset *some = mn_dataset_open("synthetic:12x9x3:10:37", true, NULL, NULL);
    mn_dataset *tiny = mn_dataset_open("synthetic:1x1x1:5:2", true, NULL, NULL);
    ck_assert(train && again && test && some && tiny);
    mn_dataset_info info = mn_dataset_info_get(train);
    ck_assert_int_eq(info.count, 2048);
    ck_assert_int_eq(info.height * 1000 + info.width * 10 + info.channels, 12093);
    ck_assert_int_eq(info.classes, 10);
    ck_assert_int_eq(mn_dataset_info_get(test).count, 512);
    ck_assert_int_eq(mn_dataset_info_get(some).count, 37);
    ck_assert_uint_eq(info.fingerprint, mn_dataset_info_get(again).fingerprint);
    ck_assert_uint_ne(info.fingerprint, mn_dataset_info_get(test).fingerprint);
    ck_assert_double_gt(nearest_mean_accuracy(train, test), 0.95);
    const uint8_t *image, *other;
    int64_t ends = 0;
    ck_assert(mn_dataset_get(train, 0, &image, NULL) && mn_dataset_get(test, 0, &other, NULL));
    ck_assert_int_ne(memcmp(image, other, (size_t)(12 * 9 * 3)), 0); /* noise of its own */
    for (int64_t i = 0; i < info.count * 12 * 9 * 3; i++)
        ends += image[i] == 0 || image[i] == 255;
    ck_assert_int_gt(ends, info.count * 12 * 9 * 3 / 50); /* cut off, not wrapped around */
    mn_dataset_free(train);
    mn_dataset_free(again);
    mn_dataset_free(test);
    mn_dataset_free(some);
    mn_dataset_free(tiny);
}
END_TEST

START_TEST(memory_is_copied_and_checked)
{
    uint8_t images[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    int64_t labels[2] = {1, 0}, shape[4] = {2, 1, 2, 3}, label;
    const uint8_t *image;
    mn_error error;
    mn_dataset *dataset = mn_dataset_from_memory(images, labels, shape, 2, NULL, &error);
    images[7] = 0;
    labels[1] = 1;
    ck_assert(mn_dataset_get(dataset, 1, &image, &label));
    ck_assert_int_eq(image[1], 8);
    ck_assert_int_eq(label, 0);
    mn_dataset_free(dataset);
    labels[1] = 2;
    ck_assert_ptr_null(mn_dataset_from_memory(images, labels, shape, 2, NULL, &error));
    ck_assert_str_eq(error.message, "data: label 1 is 2, not in [0, 2)");
    labels[1] = -1;
    ck_assert_ptr_null(mn_dataset_from_memory(images, labels, shape, 2, NULL, &error));
    labels[1] = 0;
    ck_assert_ptr_null(mn_dataset_from_memory(images, labels, shape, 0, NULL, &error));
    ck_assert_ptr_null(mn_dataset_from_memory(NULL, labels, shape, 2, NULL, &error));
    ck_assert_ptr_null(mn_dataset_from_memory(images, NULL, shape, 2, NULL, NULL));
    for (int i = 0; i < 4; i++) {
        int64_t bad[4] = {2, 1, 2, 3};
        bad[i] = 0;
        ck_assert_ptr_null(mn_dataset_from_memory(images, labels, bad, 2, NULL, &error));
        ck_assert_int_eq(error.status, MN_ERR_SHAPE);
    }
    int64_t huge[4] = {2, INT64_MAX, INT64_MAX, 2};
    ck_assert_ptr_null(mn_dataset_from_memory(images, labels, huge, 2, NULL, &error));
    ck_assert_int_eq(error.status, MN_ERR_SHAPE);
}
END_TEST

START_TEST(normalization_is_measured)
{
    const uint8_t images[12] = {0, 9, 255, 9, 0, 9, 255, 9, 51, 9, 51, 9};
    int64_t labels[6] = {0}, shape[4] = {3, 1, 2, 2};
    mn_normalization n;
    mn_error error;
    mn_dataset *dataset = mn_dataset_from_memory(images, labels, shape, 1, NULL, &error);
    ck_assert_int_eq(mn_dataset_normalization(dataset, 2, &n, &error), MN_OK);
    ck_assert_int_eq(n.channels, 2);
    ck_assert_double_eq((double)n.mean[0], 0.5);
    ck_assert_double_eq((double)n.deviation[0], 0.5);
    ck_assert_double_eq_tol((double)n.mean[1], 9 / 255.0, 1e-8);
    ck_assert_double_eq((double)n.deviation[1], 1.0); /* never changes: nothing to scale */
    ck_assert_int_eq(mn_dataset_normalization(dataset, 0, &n, &error), MN_OK);
    ck_assert_double_eq_tol((double)n.mean[0], 0.4, 1e-7);
    ck_assert_double_eq_tol((double)n.deviation[0], sqrt(14.0 / 75.0), 1e-7);
    ck_assert_int_eq(mn_dataset_normalization(dataset, 99, &n, &error), MN_OK);
    ck_assert_double_eq_tol((double)n.mean[0], 0.4, 1e-7);
    ck_assert_int_eq(mn_dataset_normalization(dataset, -1, &n, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_dataset_normalization(NULL, 0, &n, &error), MN_ERR_ARGUMENT);
    ck_assert_int_eq(mn_dataset_normalization(dataset, 0, NULL, NULL), MN_ERR_ARGUMENT);
    mn_dataset_free(dataset);
    dataset = mn_dataset_from_memory(images, labels, (int64_t[4]){1, 1, 2, 6}, 1, NULL, NULL);
    ck_assert_int_eq(mn_dataset_normalization(dataset, 0, &n, &error), MN_ERR_UNSUPPORTED);
    mn_dataset_free(dataset);
}
END_TEST

/* ---- memory that runs out -------------------------------------------------------------------- */

static mn_dataset *from_memory(const mn_allocator *allocator, mn_error *error)
{
    const int64_t labels[3] = {0, 1, 2}, shape[4] = {3, 2, 2, 1};
    return mn_dataset_from_memory(good_images + 16, labels, shape, 3, allocator, error);
}

/* Fails the k-th allocation for k = 1, 2, ... until opening succeeds (NULL: from memory). */
static long exhaust(const char *what)
{
    for (long k = 1;; k++) {
        mn_test_counter c = {.fail_at = k};
        mn_allocator allocator = mn_test_counting(&c);
        mn_error error = {MN_OK, ""};
        mn_dataset *dataset = what ? mn_dataset_open(what, false, &allocator, &error)
                                   : from_memory(&allocator, &error);
        bool opened = dataset != NULL;
        ck_assert_int_eq(error.status, opened ? MN_OK : MN_ERR_MEMORY);
        mn_dataset_free(dataset);
        ck_assert_int_eq(c.blocks, 0);
        ck_assert_uint_eq(c.bytes, 0);
        if (opened)
            return k;
    }
}

START_TEST(exhausted_memory_is_an_error)
{
    ck_assert_int_gt(exhaust(NULL), 3);
    ck_assert_int_gt(exhaust("synthetic:4x4x1:2:6"), 4);
    ck_assert_int_gt(exhaust(spec), 6);
    remove(path_of(IMAGES));
    write_gzip(IMAGES ".gz", "wb", good_images, sizeof good_images);
    ck_assert_int_gt(exhaust(spec), 7); /* zlib's memory is ours, too */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("datasets");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, setup, teardown);
    tcase_set_timeout(files, 120);
    tcase_add_test(files, idx_reads_plain);
    tcase_add_test(files, idx_reads_gzip);
    tcase_add_test(files, fingerprint_sees_every_byte);
    tcase_add_test(files, idx_refuses_truncation);
    tcase_add_test(files, idx_refuses_changed_headers);
    tcase_add_test(files, idx_refuses_wrong_content);
    tcase_add_test(files, idx_refuses_what_is_no_file);
    tcase_add_test(files, gzip_damage_never_passes);
    tcase_add_test(files, gzip_longer_than_promised);
    tcase_add_test(files, exhausted_memory_is_an_error);
    suite_add_tcase(suite, files);
    TCase *sets = tcase_create("sets");
    tcase_set_timeout(sets, 120);
    tcase_add_test(sets, fashion_mnist_if_installed);
    tcase_add_test(sets, names_are_enough_to_open_again);
    tcase_add_test(sets, specs_are_checked);
    tcase_add_test(sets, synthetic_is_fixed_and_learnable);
    tcase_add_test(sets, memory_is_copied_and_checked);
    tcase_add_test(sets, normalization_is_measured);
    suite_add_tcase(suite, sets);
    return mn_test_run(suite, CK_FORK_GETENV);
}
