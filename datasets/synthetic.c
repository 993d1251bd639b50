/* datasets/synthetic.c: learnable images made from numbers alone. Each class is a smooth pattern,
 * the same in both parts; each image is its class's pattern plus noise. All in integers, so that
 * the bytes, and with them the fingerprint, are the same everywhere. */
#include "datasets/internal.h"
#include "core/philox.h"

#include <stdio.h>

#define SIDE_MAX     4096
#define CHANNELS_MAX 64
#define CLASSES_MAX  65536
#define COUNT_MAX    1000000000
#define COUNT_TRAIN  2048
#define COUNT_TEST   512

/* Not the user's seed: "synthetic:28x28x1:10" is one data set. */
#define SEED 0x6d696e696d

/* A pattern is GRID x GRID random greys, interpolated; positions have FRACTION steps per cell. */
#define GRID     5
#define FRACTION 256

/* Reads one positive number up to `largest` and moves on; -1 if there is none. */
static int64_t read_number(const char **text, int64_t largest)
{
    int64_t value = 0;
    const char *c = *text;
    for (; *c >= '0' && *c <= '9' && value <= largest; c++)
        value = value * 10 + (*c - '0');
    if (c == *text || value < 1 || value > largest)
        return -1;
    *text = c;
    return value;
}

static mn_status parse(mn_dataset *dataset, const char *text, bool train)
{
    mn_dataset_info *info = &dataset->info;
    static const int64_t largest[] = {SIDE_MAX, SIDE_MAX, CHANNELS_MAX, CLASSES_MAX, COUNT_MAX};
    static const char separators[] = "xx::";
    int64_t values[5] = {0, 0, 0, 0, train ? COUNT_TRAIN : COUNT_TEST};
    bool counted = true;
    for (int i = 0; i < 5; i++) {
        if ((values[i] = read_number(&text, largest[i])) < 0)
            return MN_ERR_ARGUMENT;
        if (i == 3 && *text == '\0') {
            counted = false;
            break;
        }
        if (*text++ != separators[i])
            return MN_ERR_ARGUMENT;
    }
    info->height = values[0];
    info->width = values[1];
    info->channels = values[2];
    info->classes = (int)values[3];
    info->count = values[4];
    char count[16] = "";
    if (counted)
        snprintf(count, sizeof count, ":%d", (int)values[4]);
    snprintf(dataset->name, sizeof dataset->name, "synthetic:%dx%dx%d:%d%s", (int)values[0],
             (int)values[1], (int)values[2], (int)values[3], count);
    info->name = dataset->name;
    return MN_OK;
}

/* Where `index` of `size` stands on the grid: the cell, and how far into it. */
static int grid_position(int64_t index, int64_t size, int *within)
{
    int64_t span = (GRID - 1) * FRACTION;
    int64_t position = size > 1 ? index * span / (size - 1) : span / 2;
    int cell = (int)(position / FRACTION);
    if (cell > GRID - 2)
        cell = GRID - 2;
    *within = (int)(position - (int64_t)cell * FRACTION);
    return cell;
}

static int interpolate(const int grid[GRID][GRID], int row, int down, int column, int right)
{
    const int *upper = grid[row], *lower = grid[row + 1];
    int above = upper[column] * (FRACTION - right) + upper[column + 1] * right;
    int below = lower[column] * (FRACTION - right) + lower[column + 1] * right;
    return (above * (FRACTION - down) + below * down) / (FRACTION * FRACTION);
}

static void draw_pattern(const mn_dataset_info *info, int class, uint8_t *pattern)
{
    mn_stream stream = mn_stream_open(SEED, MN_STREAM_SYNTHETIC, "pattern", (uint64_t) class);
    for (int64_t c = 0; c < info->channels; c++) {
        int grid[GRID][GRID];
        for (int i = 0; i < GRID * GRID; i++)
            grid[i / GRID][i % GRID] = 16 + (int)(mn_stream_u32(&stream) % 224);
        for (int64_t h = 0; h < info->height; h++) {
            int down, right, row = grid_position(h, info->height, &down);
            for (int64_t w = 0; w < info->width; w++) {
                int column = grid_position(w, info->width, &right);
                pattern[(h * info->width + w) * info->channels + c] =
                    (uint8_t)interpolate((const int(*)[GRID])grid, row, down, column, right);
            }
        }
    }
}

/* Four uniform bytes summed are close to normal; a third of that has a deviation of about 49. */
static int noise(uint32_t word)
{
    int sum =
        (int)(word & 255) + (int)(word >> 8 & 255) + (int)(word >> 16 & 255) + (int)(word >> 24);
    return (sum - 510) / 3;
}

static void draw_image(const uint8_t *pattern, size_t bytes, mn_stream *stream, uint8_t *image)
{
    for (size_t i = 0; i < bytes; i++) {
        int value = pattern[i] + noise(mn_stream_u32(stream));
        image[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

/* Class by class, so that one pattern at a time is enough. */
static void draw_all(mn_dataset *dataset, size_t bytes, bool train, uint8_t *pattern)
{
    const mn_dataset_info *info = &dataset->info;
    uint8_t *images = dataset->images.data;
    int64_t *labels = dataset->labels.data;
    for (int class = 0; class < info->classes && class < info->count; class ++) {
        draw_pattern(info, class, pattern);
        for (int64_t i = class; i < info->count; i += info->classes) {
            mn_stream stream =
                mn_stream_open(SEED, MN_STREAM_SYNTHETIC, train ? "train" : "test", (uint64_t)i);
            draw_image(pattern, bytes, &stream, images + (size_t)i * bytes);
            labels[i] = class;
        }
    }
}

mn_status mn_data_synthesize(mn_dataset *dataset, const char *parameters, bool train,
                             mn_error *error)
{
    const mn_dataset_info *info = &dataset->info;
    if (parse(dataset, parameters, train) != MN_OK)
        return mn_error_fill(error, MN_ERR_ARGUMENT,
                             "synthetic:%s: want synthetic:HxWxC:CLASSES[:COUNT] with numbers from "
                             "1, sides up to %d, channels to %d, classes to %d, images to %d",
                             mn_path_shown(parameters), SIDE_MAX, CHANNELS_MAX, CLASSES_MAX,
                             COUNT_MAX);
    mn_data_buffer pattern = {0};
    size_t bytes = (size_t)(info->height * info->width * info->channels);
    MN_TRY(mn_data_alloc_images(dataset, error));
    MN_TRY(mn_data_alloc(&dataset->allocator, &pattern, 1, bytes, error));
    draw_all(dataset, bytes, train, pattern.data);
    mn_data_free(&dataset->allocator, &pattern);
    return MN_OK;
}
