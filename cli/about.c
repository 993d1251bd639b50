/* minim ops and minim info. */
#include "cli.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

/* "f64 f32 f16" of a mask into buffer, or "all". */
static const char *dtypes_text(uint32_t mask, char *buffer, size_t size)
{
    size_t used = 0;
    buffer[0] = '\0';
    if (mask == (1u << MN_DTYPE_COUNT) - 1)
        return "all";
    for (int t = 0; t < MN_DTYPE_COUNT; t++)
        if ((mask >> t & 1u) != 0 && used < size)
            used += (size_t)snprintf(buffer + used, size - used, "%s%s", used > 0 ? " " : "",
                                     mn_dtype_name((mn_dtype)t));
    return buffer[0] != '\0' ? buffer : "-";
}

static void print_dtypes_json(const char *key, uint32_t mask)
{
    bool first = true;
    printf(",\"%s\":[", key);
    for (int t = 0; t < MN_DTYPE_COUNT; t++)
        if ((mask >> t & 1u) != 0) {
            printf("%s\"%s\"", first ? "" : ",", mn_dtype_name((mn_dtype)t));
            first = false;
        }
    printf("]");
}

/* ,"functions":["mn_pad","mn_slice"] of words apart by blanks */
static void print_functions_json(const char *functions)
{
    const char *separator = "";
    printf(",\"functions\":[");
    while (*functions != '\0') {
        int length = (int)strcspn(functions, " ");
        printf("%s\"%.*s\"", separator, length, functions);
        functions += length + (functions[length] == ' ');
        separator = ",";
    }
    printf("]");
}

static void print_ops_json(void)
{
    mn_op_info info;
    printf("{\"ops\":[");
    for (int i = 0; mn_op_info_get(i, &info); i++) {
        printf("%s{\"name\":\"%s\",\"rule\":{\"cpu\":\"%s\",\"cuda\":\"%s\"},\"differentiable\":%s",
               i > 0 ? "," : "", info.name, mn_cast_rule_name(info.rule_cpu),
               mn_cast_rule_name(info.rule_cuda), info.differentiable ? "true" : "false");
        print_dtypes_json("cpu", info.cpu_dtypes);
        print_dtypes_json("reference", info.reference_dtypes);
        print_functions_json(info.functions);
        cli_json_text(stdout, "summary", info.summary);
        printf("}");
    }
    printf("]}\n");
}

/* The rest of a line from column `at` on, which hangs there in a terminal; a narrow one has it
 * below.
 */
static void print_hanging(const char *text, int at)
{
    const int columns = cli_columns(STDOUT_FILENO, INT_MAX);
    int column = at;
    if (columns - at < 36) {
        at = 4;
        column = columns;
    }
    while (*text != '\0') {
        int blanks = (int)strspn(text, " "), length = blanks + (int)strcspn(text + blanks, " ");
        if (length > columns - column) {
            printf("\n%*s", at, "");
            text += blanks;
            length -= blanks;
            column = at;
        }
        column += printf("%.*s", length, text);
        text += length;
    }
    putchar('\n');
}

/* The ops that functions of minim.h run, or those that only backward does. */
static void print_ops(bool public_ones)
{
    mn_op_info info;
    char cpu[80], text[512];
    int width = 0;
    for (int i = 0; mn_op_info_get(i, &info); i++)
        if ((int)strlen(info.name) > width)
            width = (int)strlen(info.name);
    const int at =
        printf("%-*s  %-8s  %-4s  %-14s  ", width, public_ones ? "op" : "run by backward only",
               "autocast", "grad", "CPU kernel for");
    print_hanging("what it does", at);
    for (int i = 0; mn_op_info_get(i, &info); i++) {
        if ((info.functions[0] != '\0') != public_ones)
            continue;
        printf("%-*s  %-8s  %-4s  %-14s  ", width, info.name, mn_cast_rule_name(info.rule_cpu),
               info.differentiable ? "yes" : "no", dtypes_text(info.cpu_dtypes, cpu, sizeof cpu));
        bool same =
            strncmp(info.functions, "mn_", 3) == 0 && strcmp(info.functions + 3, info.name) == 0;
        snprintf(text, sizeof text, !public_ones || same ? "%s" : "%s   [%s]", info.summary,
                 info.functions);
        print_hanging(text, at);
    }
}

int cli_ops(settings *set)
{
    if (set->json) {
        print_ops_json();
        return EXIT_OK;
    }
    print_ops(true);
    printf("\n");
    print_ops(false);
    printf("\nautocast: what becomes of the inputs in a mixed-precision region, on the CPU and on "
           "CUDA:\n"
           "  KEEP them, LOWER them to 16 bit, cast them to FP32, read 16 bit but give the result "
           "in f32\n"
           "  (FP32_OUT), PROMOTE them to the widest, REFUSE to run; --rules op=RULE changes it\n"
           "grad: whether a gradient flows through it\n"
           "Dtypes without a CPU kernel are served by the reference kernel, which is slow. The "
           "function\n"
           "of op x is mn_x, unless [others] are named; backward ops have none.\n");
    return EXIT_OK;
}

int cli_info(settings *set)
{
    mn_error error = {MN_OK, ""};
    mn_context *context = mn_context_create(&set->train.context, &error);
    if (context == NULL)
        return cli_fail_error("info", &error);
    mn_context_info info = mn_context_info_get(context);
    const char *const rows[][2] = {{"version", mn_version()},      {"compiler", info.compiler},
                                   {"device", info.device},        {"cpu", info.cpu},
                                   {"features", info.features},    {"kernels", info.kernels},
                                   {"cuda", "not in this version"}};
    size_t count = sizeof rows / sizeof rows[0];
    for (size_t i = 0; i < count; i++) {
        if (set->json) {
            printf("%s\"%s\":", i == 0 ? "{" : ",", rows[i][0]);
            cli_json_string(stdout, rows[i][1]);
        } else {
            printf("%-9s %s\n", rows[i][0], rows[i][1]);
        }
    }
    printf(set->json ? ",\"threads\":%d}\n" : "threads   %d\n", info.threads);
    mn_context_free(context);
    return EXIT_OK;
}
