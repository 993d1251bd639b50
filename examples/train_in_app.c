/* Training inside a program: images from a function of its own, progress, a stop that keeps what
 * was learned, and the checkpoint as bytes in memory instead of a file. */
#include <minim.h>
#include <stdio.h>

enum { SIDE = 12, CLASSES = 4, COUNT = 512 };

typedef struct app {
    int salt;  /* of the images */
    bool stop; /* set by the program, here once enough is learned */
    mn_context *context;
    void *checkpoint; /* bytes of a file, in memory of the context */
    size_t bytes;
} app;

/* Image `index`: a bright bar at one of four places. Called from a thread of the loader. */
static bool draw(void *user, int64_t index, uint8_t *image, int64_t *label)
{
    *label = index * ((const app *)user)->salt % CLASSES;
    for (int64_t i = 0; i < SIDE * SIDE; i++)
        image[i] = (uint8_t)((i / SIDE / 3 == *label ? 160 : 20) + (index * 31 + i * 17) % 60);
    return true;
}

/* The usual step; every 20 steps the model is kept. */
static mn_status step(mn_step *s, void *user)
{
    app *a = user;
    mn_status status = mn_step_default(s, NULL);
    if (status != MN_OK || s->step % 20 != 0)
        return status;
    mn_state_dict *dict = mn_state_dict_create(s->context);
    mn_module_save_state(s->model, dict);
    mn_buffer_free(s->context, a->checkpoint, a->bytes);
    a->context = s->context;
    status = mn_state_dict_to_buffer(dict, &a->checkpoint, &a->bytes);
    return mn_state_dict_free(dict), status;
}

static void progress(void *user, const mn_progress *p)
{
    ((app *)user)->stop = p->steps > 20 && p->accuracy > 0.9;
    printf("step %d of %d: loss %.4f\n", (int)p->steps, (int)p->total_steps, p->loss);
}

static bool cancel(void *user)
{
    return ((const app *)user)->stop;
}

static void use_and_free(const app *a)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    mn_state_dict *dict = mn_state_dict_from_buffer(ctx, a->checkpoint, a->bytes);
    mn_model_options size = {sizeof size, SIDE, SIDE, 1, CLASSES};
    mn_module *net = mn_model_create(ctx, "cnn-small", &size);
    if (mn_module_load_state(net, dict) == MN_OK)
        printf("the kept model is ready: %d tensors\n", (int)mn_state_dict_count(dict));
    mn_module_free(net), mn_state_dict_free(dict), mn_context_free(ctx);
    mn_buffer_free(a->context, a->checkpoint, a->bytes);
}

int main(void)
{
    app a = {.salt = 7};
    mn_error error = {MN_OK, ""};
    mn_dataset_source source = mn_dataset_source_default();
    source.get = draw, source.classes = CLASSES, source.shape[3] = 1, source.user = &a;
    source.shape[0] = COUNT, source.shape[1] = source.shape[2] = SIDE;
    mn_dataset *data = mn_dataset_from_callback(&source, NULL, &error);
    mn_train_options o = mn_train_options_default();
    o.train_set = data, o.model = "cnn-small", o.amp = MN_BF16, o.batch = 16, o.lr = 0.01;
    o.step = step, o.step_user = o.user = &a, o.progress = progress, o.cancel = cancel;
    mn_train_result *result = data != NULL ? mn_train(&o, &error) : NULL;
    use_and_free(&a);
    mn_train_result_free(result), mn_dataset_free(data);
    fputs(error.message, stderr);
    return error.status != MN_OK;
}
