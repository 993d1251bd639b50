/* datasets/loader.c: batches of a data set in a seeded order, normalized. A thread may prepare the
 * next ones into a ring of buffers; nothing is allocated after create. */
#include "datasets/internal.h"
#include "core/philox.h"

#include <string.h>

/* One with the caller, one ready, one being filled. */
#define SLOTS        3
#define CHANNELS_MAX 4

struct mn_loader {
    mn_allocator allocator;
    mn_loader_options options;
    const mn_dataset *dataset;
    int64_t count;        /* images of the part */
    int64_t batch;        /* largest batch: no more than count */
    mn_data_buffer part;  /* i64 [count]: the part in index order */
    mn_data_buffer order; /* i64 [count]: this epoch's */
    mn_data_buffer table; /* f32 [channels or 1][256]: pixel to value */
    mn_data_buffer room;  /* one image, where images are fetched */
    mn_data_buffer images[SLOTS];
    mn_data_buffer labels[SLOTS];
    int slots;
    bool started;
    int64_t position; /* first image of the epoch's batch 0 */
    int64_t batches;  /* from there to the end */
    int64_t taken;    /* handed out */
    double waited;

    /* The ring. Batch b lies in slot b % SLOTS; the caller holds batch taken - 1. `filled`,
     * `released`, `stop` and `failure` are under the mutex while the thread runs. */
    bool running;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t filled, released;
    bool stop;
    mn_error failure; /* why batch `filled` could not be made */
};

mn_loader_options mn_loader_options_default(void)
{
    return (mn_loader_options){.size = sizeof(mn_loader_options),
                               .batch = 64,
                               .shuffle = true,
                               .seed = 1,
                               .prefetch = true};
}

/* How many of `count` images are held out: the nearest number, but where the fraction is not 0
 * neither part is left empty if that can be. */
static int64_t held_count(int64_t count, double fraction)
{
    if (mn_isnan_f64(fraction) || fraction <= 0.0)
        return 0;
    int64_t held = (int64_t)((double)count * fraction + 0.5);
    if (held < 1)
        held = 1;
    return held < count ? held : count - 1;
}

/* Chooses `held` of `count` images by the seed alone, so the same in every epoch. Writes the
 * indices of the chosen ones, or of the others, in index order. `scratch` has room for `count`
 * values. */
static void split(uint64_t seed, int64_t count, int64_t held, bool want_held, int64_t *scratch,
                  int64_t *part)
{
    mn_stream stream = mn_stream_open(seed, MN_STREAM_SPLIT, NULL, 0);
    mn_stream_permutation(&stream, count, scratch);
    /* The first `held` images of the permutation are chosen. Their marks are the signs of the same
     * table, so that no second one is needed. */
    for (int64_t i = 0; i < held; i++) {
        int64_t image = scratch[i] < 0 ? -scratch[i] - 1 : scratch[i];
        if (scratch[image] >= 0)
            scratch[image] = -scratch[image] - 1;
    }
    int64_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        if ((scratch[i] < 0) == want_held)
            part[used++] = i;
    }
}

static mn_status check_normalization(const mn_normalization *normalization, int64_t channels,
                                     mn_error *error)
{
    int stated = normalization->channels;
    if (stated == 0)
        return MN_OK;
    if (stated < 0 || stated > CHANNELS_MAX || stated != channels)
        return mn_error_fill(error, MN_ERR_ARGUMENT,
                             "loader: normalization has %d channels, the images have %lld", stated,
                             (long long)channels);
    for (int c = 0; c < stated; c++) {
        double mean = (double)normalization->mean[c];
        double deviation = (double)normalization->deviation[c];
        if (!mn_isfinite_f64(mean) || !mn_isfinite_f64(deviation) || deviation <= 0.0)
            return mn_error_fill(error, MN_ERR_ARGUMENT,
                                 "loader: channel %d: mean %g, deviation %g, want finite numbers "
                                 "and a deviation above 0",
                                 c, mean, deviation);
    }
    return MN_OK;
}

static mn_status check_options(const mn_loader_options *options, int64_t channels, mn_error *error)
{
    if (options->batch < 1)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "loader: batch is %lld, want at least 1",
                             (long long)options->batch);
    if (options->limit < 0)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "loader: limit is %lld, want 0 or more",
                             (long long)options->limit);
    if (!mn_is_within(options->validation, 0.0, 1.0) || options->validation == 1.0)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "loader: validation is %g, want it in [0, 1)",
                             options->validation);
    return check_normalization(&options->normalization, channels, error);
}

/* Value of each pixel per channel; with no normalization one row serves all channels. */
static mn_status fill_table(mn_loader *loader, mn_error *error)
{
    const mn_normalization *normalization = &loader->options.normalization;
    int rows = normalization->channels == 0 ? 1 : normalization->channels;
    MN_TRY(mn_data_alloc(&loader->allocator, &loader->table, (size_t)rows * 256, sizeof(float),
                         error));
    float *table = loader->table.data;
    for (int i = 0; i < rows * 256; i++) {
        double value = (i % 256) / 255.0;
        if (normalization->channels > 0)
            value = (value - (double)normalization->mean[i / 256]) /
                    (double)normalization->deviation[i / 256];
        table[i] = (float)value;
    }
    return MN_OK;
}

static mn_status choose_part(mn_loader *loader, mn_error *error)
{
    const mn_loader_options *options = &loader->options;
    int64_t limit = options->limit, all = loader->dataset->info.count;
    int64_t count = limit == 0 || limit > all ? all : limit;
    int64_t held = held_count(count, options->validation);
    mn_data_buffer scratch;
    loader->count = options->held_out ? held : count - held;
    if (loader->count == 0)
        return mn_error_fill(
            error, MN_ERR_ARGUMENT,
            "loader: validation %g of %lld images holds out none (want more images, or 0)",
            options->validation, (long long)count);
    size_t room = (size_t)loader->count, size = sizeof(int64_t);
    MN_TRY(mn_data_alloc(&loader->allocator, &loader->part, room, size, error));
    MN_TRY(mn_data_alloc(&loader->allocator, &loader->order, room, size, error));
    MN_TRY(mn_data_alloc(&loader->allocator, &scratch, (size_t)count, size, error));
    split(options->seed, count, held, options->held_out, scratch.data, loader->part.data);
    mn_data_free(&loader->allocator, &scratch);
    return MN_OK;
}

static mn_status allocate_slots(mn_loader *loader, mn_error *error)
{
    const mn_allocator *allocator = &loader->allocator;
    size_t values, size = sizeof(int64_t);
    loader->batch = loader->options.batch < loader->count ? loader->options.batch : loader->count;
    size_t batch = (size_t)loader->batch;
    if (!mn_size_mul(batch, loader->dataset->image_bytes, &values))
        return mn_error_fill(error, MN_ERR_MEMORY, "loader: a batch of %zu does not fit", batch);
    for (int i = 0; i < loader->slots; i++) {
        MN_TRY(mn_data_alloc(allocator, &loader->images[i], values, sizeof(float), error));
        MN_TRY(mn_data_alloc(allocator, &loader->labels[i], batch, size, error));
    }
    return MN_OK;
}

static mn_status prepare(mn_loader *loader, mn_error *error)
{
    loader->slots = loader->options.prefetch ? SLOTS : 1;
    MN_TRY(choose_part(loader, error));
    MN_TRY(fill_table(loader, error));
    if (loader->dataset->mutex)
        MN_TRY(mn_data_alloc(&loader->allocator, &loader->room, loader->dataset->image_bytes, 1,
                             error));
    return allocate_slots(loader, error);
}

mn_loader *mn_loader_create(const mn_dataset *dataset, const mn_loader_options *options,
                            mn_error *error)
{
    mn_loader_options chosen = mn_loader_options_default();
    mn_allocator allocator;
    if (!dataset) {
        mn_error_fill(error, MN_ERR_ARGUMENT, "loader: data set is NULL");
        return NULL;
    }
    if (mn_options_copy(error, "mn_loader", &chosen, sizeof chosen, options) != MN_OK ||
        check_options(&chosen, dataset->info.channels, error) != MN_OK ||
        mn_allocator_read(&chosen.allocator, &allocator, error) != MN_OK)
        return NULL;
    mn_loader *loader = allocator.alloc(allocator.user, sizeof *loader, 64);
    if (!loader) {
        mn_error_fill(error, MN_ERR_MEMORY, "loader: no memory");
        return NULL;
    }
    *loader = (mn_loader){.allocator = allocator,
                          .options = chosen,
                          .dataset = dataset,
                          .mutex = PTHREAD_MUTEX_INITIALIZER,
                          .changed = PTHREAD_COND_INITIALIZER};
    if (prepare(loader, error) != MN_OK) {
        mn_loader_free(loader);
        return NULL;
    }
    return loader;
}

static void stop_thread(mn_loader *loader)
{
    if (!loader->running)
        return;
    pthread_mutex_lock(&loader->mutex);
    loader->stop = true;
    pthread_cond_broadcast(&loader->changed);
    pthread_mutex_unlock(&loader->mutex);
    pthread_join(loader->thread, NULL);
    loader->running = false;
}

void mn_loader_free(mn_loader *loader)
{
    if (!loader)
        return;
    stop_thread(loader);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->mutex);
    mn_allocator allocator = loader->allocator;
    for (int i = 0; i < SLOTS; i++) {
        mn_data_free(&allocator, &loader->images[i]);
        mn_data_free(&allocator, &loader->labels[i]);
    }
    mn_data_free(&allocator, &loader->room);
    mn_data_free(&allocator, &loader->table);
    mn_data_free(&allocator, &loader->order);
    mn_data_free(&allocator, &loader->part);
    allocator.free(allocator.user, loader, sizeof *loader);
}

int64_t mn_loader_count(const mn_loader *loader)
{
    return loader ? loader->count : 0;
}

double mn_loader_wait_seconds(const mn_loader *loader)
{
    return loader ? loader->waited : 0.0;
}

static void convert_image(const mn_loader *loader, const uint8_t *pixels, float *values)
{
    const float *table = loader->table.data;
    size_t count = loader->dataset->image_bytes;
    size_t rows = loader->table.size / (256 * sizeof(float));
    if (rows == 1) {
        for (size_t i = 0; i < count; i++)
            values[i] = table[pixels[i]];
        return;
    }
    for (size_t i = 0; i < count; i += rows) {
        for (size_t c = 0; c < rows; c++)
            values[i + c] = table[c * 256 + pixels[i + c]];
    }
}

/* Images of batch `index` of the epoch. */
static int64_t batch_count(const mn_loader *loader, int64_t index)
{
    int64_t left = loader->count - loader->position - index * loader->batch;
    return left < loader->batch ? left : loader->batch;
}

static mn_status fill(const mn_loader *loader, int64_t index, int slot, mn_error *error)
{
    const mn_dataset *dataset = loader->dataset;
    const int64_t *order = loader->order.data;
    float *images = loader->images[slot].data;
    int64_t *labels = loader->labels[slot].data;
    int64_t first = loader->position + index * loader->batch;
    int64_t count = batch_count(loader, index);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *pixels;
        MN_TRY(mn_data_fetch(dataset, order[first + i], loader->room.data, &pixels, &labels[i],
                             error));
        convert_image(loader, pixels, images + (size_t)i * dataset->image_bytes);
    }
    return MN_OK;
}

/* Fills batch after batch as long as a slot is free and nothing fails. */
static void *prefetch(void *argument)
{
    mn_loader *loader = argument;
    mn_error failure = {.status = MN_OK};
    pthread_mutex_lock(&loader->mutex);
    for (int64_t index = 0; index < loader->batches && !loader->stop; index++) {
        while (index - loader->released >= SLOTS && !loader->stop)
            pthread_cond_wait(&loader->changed, &loader->mutex);
        if (loader->stop)
            break;
        pthread_mutex_unlock(&loader->mutex);
        mn_status status = fill(loader, index, (int)(index % SLOTS), &failure);
        pthread_mutex_lock(&loader->mutex);
        if (status == MN_OK)
            loader->filled = index + 1;
        else
            loader->failure = failure;
        pthread_cond_broadcast(&loader->changed);
        if (status != MN_OK)
            break;
    }
    pthread_mutex_unlock(&loader->mutex);
    return NULL;
}

/* Where no thread is to be had the batches are made when they are asked for. */
static void start_thread(mn_loader *loader)
{
    loader->running = loader->options.prefetch && loader->batches > 0 &&
                      mn_thread_start(&loader->thread, prefetch, loader) == 0;
}

static void make_order(mn_loader *loader, int64_t epoch)
{
    const int64_t *part = loader->part.data;
    int64_t *order = loader->order.data;
    if (!loader->options.shuffle) {
        memcpy(order, part, loader->part.size);
        return;
    }
    mn_stream stream =
        mn_stream_open(loader->options.seed, MN_STREAM_SHUFFLE, NULL, (uint64_t)epoch);
    mn_stream_permutation(&stream, loader->count, order);
    for (int64_t i = 0; i < loader->count; i++)
        order[i] = part[order[i]];
}

mn_status mn_loader_start(mn_loader *loader, int64_t epoch, int64_t position, mn_error *error)
{
    if (!loader)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "loader: loader is NULL");
    if (epoch < 0 || position < 0 || position > loader->count)
        return mn_error_fill(error, MN_ERR_ARGUMENT,
                             "loader: epoch %lld, position %lld: want an epoch from 0 and a "
                             "position in [0, %lld]",
                             (long long)epoch, (long long)position, (long long)loader->count);
    stop_thread(loader);
    make_order(loader, epoch);
    loader->started = true;
    loader->position = position;
    loader->batches = (loader->count - position) / loader->batch +
                      ((loader->count - position) % loader->batch != 0);
    loader->taken = loader->filled = loader->released = 0;
    loader->stop = false;
    loader->failure.status = MN_OK;
    start_thread(loader);
    return MN_OK;
}

/* Gives back what the caller holds and waits for batch `taken`; false: it could not be made. */
static bool await(mn_loader *loader)
{
    pthread_mutex_lock(&loader->mutex);
    loader->released = loader->taken;
    pthread_cond_broadcast(&loader->changed);
    while (loader->filled <= loader->taken && loader->failure.status == MN_OK)
        pthread_cond_wait(&loader->changed, &loader->mutex);
    bool there = loader->filled > loader->taken;
    pthread_mutex_unlock(&loader->mutex);
    return there;
}

/* The same without a thread. What failed stays failed until the loader is started again. */
static bool make_now(mn_loader *loader)
{
    return loader->failure.status == MN_OK &&
           fill(loader, loader->taken, 0, &loader->failure) == MN_OK;
}

mn_status mn_loader_next(mn_loader *loader, mn_batch *batch, mn_error *error)
{
    if (!loader || !batch)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "loader: %s is NULL",
                             loader ? "batch" : "loader");
    if (!loader->started)
        return mn_error_fill(error, MN_ERR_STATE, "loader: call mn_loader_start first");
    const mn_dataset_info *info = &loader->dataset->info;
    *batch = (mn_batch){.height = info->height, .width = info->width, .channels = info->channels};
    if (loader->taken == loader->batches)
        return MN_OK;
    int slot = loader->running ? (int)(loader->taken % SLOTS) : 0;
    double begin = mn_clock_seconds();
    bool there = loader->running ? await(loader) : make_now(loader);
    loader->waited += mn_clock_seconds() - begin;
    if (!there)
        return mn_error_fill(error, loader->failure.status, "%s", loader->failure.message);
    batch->count = batch_count(loader, loader->taken);
    batch->images = loader->images[slot].data;
    batch->labels = loader->labels[slot].data;
    loader->taken++;
    return MN_OK;
}
