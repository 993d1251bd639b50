/* minim: the command-line program. Finds the command and runs it. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_OPTIONS                                                                                \
    "data model device threads epochs steps batch accumulate optimizer parameters lr "             \
    "momentum weight-decay schedule warmup step-size gamma clip-norm init-scale "                  \
    "growth-interval retry seed validation limit rules monitor monitor-every quiet json "

static const command commands[] = {
    {"train", "train a model, log, checkpoint, resume",
     "Trains on --data and reports loss and accuracy each epoch. --checkpoint keeps everything "
     "that\n"
     "--resume needs to go on bit for bit; --log writes one JSON object a line. Steps with "
     "--monitor\n"
     "take about twice as long, give the same results, and are left out of all timings.\n",
     RUN_OPTIONS "amp stop-after checkpoint checkpoint-every resume resume-anyway log", cli_train},
    {"eval", "loss and accuracy of a checkpoint on a data set's test part",
     "The model, image size and normalization come from the checkpoint.\n",
     "checkpoint data device threads amp batch limit json", cli_eval},
    {"compare", "train the same run in several precisions against the FP32 reference",
     "Each run starts from the same seed and sees the data in the same order. --report DIR writes\n"
     "report.json and report.html there. With three seeds or more a verdict is given.\n"
     "--monitor adds what the formats did to the numbers, with pictures by layer.\n",
     RUN_OPTIONS "precisions seeds margin report", cli_compare},
    {"bench", "throughput and memory of whole training steps, after warm-up",
     "Runs on synthetic images, so that no data set is needed: --data synthetic:HxWxC:CLASSES "
     "sets\n"
     "their size. With --profile every call of an op is timed on its own. The rest of the step is\n"
     "what passes between calls. A device that queues work is waited for around each call, which\n"
     "makes steps slower.\n",
     "model data device threads amp batch steps warmup profile kernels direct unfused json",
     cli_bench},
    {"shadow", "a model in FP32 and in 16 bit side by side: the error of every op",
     "Runs --batches batches forward and backward in both precisions, with the same weights and\n"
     "dropout masks, and changes nothing. error: an op's largest difference to FP32 over the\n"
     "largest magnitude in FP32; rms: the norm of all differences over FP32's; local: the error\n"
     "that the op itself adds, against f32 with the same inputs. Ops whose rms is past "
     "--tolerance\n"
     "are marked; the exit status is 0 all the same. In backward a large error with a small rms "
     "is\n"
     "an element for which relu or a maximum decided otherwise.\n",
     "checkpoint model data device threads amp batches batch tolerance seed rules json",
     cli_shadow},
    {"range", "would the model fit into fp16 and bf16: magnitudes per op against the formats",
     "Trains in FP32 (or --amp bf16) and measures what every op gives: whether its values would\n"
     "overflow in FP16, which loss scales its gradients allow, and what is lost at the largest.\n",
     "data model device threads amp steps batch optimizer parameters lr momentum weight-decay "
     "seed limit rules checkpoint json",
     cli_range},
    {"models", "what each model costs: parameters, operations, memory per image",
     "For one image of the size that --data gives. \"Kept\" are the bytes of a training step's\n"
     "forward pass that wait for backward; the last column is the most that a forward pass "
     "without\n"
     "gradients takes at once beside the parameters, in FP32.\n",
     "data device threads json", cli_models},
    {"graph", "one forward and backward pass op by op, as a table or a picture",
     "What ran under which cast rule, in which dtypes, and how it was served. Pictures need "
     "Graphviz;\n"
     "--format dot gives what it reads.\n",
     "model data device threads amp batch rules momentum format output forward-only step json",
     cli_graph},
    {"ops", "the table of ops: cast rule, kernels per dtype, differentiable", "", "json", cli_ops},
    {"info", "version, compiler, processor features and the kernels chosen", "",
     "device threads json", cli_info},
};
enum { COMMANDS = (int)(sizeof commands / sizeof commands[0]) };

volatile sig_atomic_t cli_interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    cli_interrupted = 1;
}

void cli_catch_interrupts(void)
{
    struct sigaction action = {.sa_handler = on_interrupt,
                               .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int cli_say(int status, const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        text[0] = '\0';
    va_end(arguments);
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "minim: %s\n", text);
    return status;
}

int cli_fail(const char *what, const char *why)
{
    return cli_say(EXIT_FAILED, "%.800s: %s", what, why);
}

int cli_fail_error(const char *what, const mn_error *error)
{
    return cli_fail(what,
                    error->message[0] != '\0' ? error->message : mn_status_name(error->status));
}

int cli_finish(int status)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    return cli_fail("standard output", strerror(errno));
}

static void print_usage(FILE *out)
{
    fprintf(out,
            "minim %s: small CNN classifiers in mixed precision\n\n"
            "usage: minim COMMAND [options]    (minim COMMAND --help explains each)\n\n",
            mn_version());
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].summary);
    fprintf(out, "\n  --version prints the version\n");
}

/* A file opened while standard output or error is closed would take its place, and what is meant
 * for the user would go into it. Standard output is opened so that writing to it still fails. */
static void reserve_standard_files(void)
{
    for (int i = 0; i < 3; i++)
        if (fcntl(i, F_GETFD) == -1 && errno == EBADF &&
            open("/dev/null", i == STDERR_FILENO ? O_WRONLY : O_RDONLY) != i)
            exit(EXIT_FAILED);
}

int main(int argc, char **argv)
{
    reserve_standard_files();
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return cli_finish(EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("minim %s\n", mn_version());
        return cli_finish(EXIT_OK);
    }
    const command *cmd = commands, *end = cmd + COMMANDS;
    while (cmd < end && strcmp(cmd->name, argv[1]) != 0)
        cmd++;
    if (cmd == end)
        return cli_say(EXIT_USAGE, "unknown command \"%.200s\": 'minim --help' lists them",
                       argv[1]);
    settings set = cli_defaults();
    int parsed = cli_parse(cmd, argc - 2, argv + 2, &set);
    if (parsed != EXIT_OK)
        return parsed < 0 ? cli_finish(EXIT_OK) : parsed;
    return cli_finish(cmd->run(&set));
}
