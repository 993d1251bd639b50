/* train/report_text.c: escapes, and numbers for readers. */
#include "train/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void mn_put_escaped(mn_json_out *page, const char *text)
{
    static const char special[] = "&<>\"", *const names[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (; text && *text; text++) {
        const char *found = strchr(special, *text);
        if (found)
            mn_put(page, "%s", names[found - special]);
        else if ((unsigned char)*text < 0x20 || *text == 0x7f)
            mn_put(page, "\xef\xbf\xbd"); /* U+FFFD: no control characters */
        else
            mn_put(page, "%c", *text);
    }
}

/* Digits without sign; from 5 on, thousands are set apart by a narrow space. */
static void group_digits(char *to, const char *digits)
{
    size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        *to++ = digits[i];
        if (whole > 4 && i + 1 < whole && (whole - i - 1) % 3 == 0)
            to = strcpy(to, "&#8239;") + 7;
    }
    strcpy(to, digits + whole);
}

/* Fixed decimals only where they fit: beyond, and for `decimals` < 0, significant digits. */
mn_label mn_number(double value, int decimals, const char *unit)
{
    mn_label label;
    char digits[40], grouped[80];
    bool fixed = decimals >= 0 && decimals <= 9 && fabs(value) < 1e12;
    if (mn_isnan_f64(value))
        return (mn_label){"<span class=\"none\">not measured</span>"};
    if (!mn_isfinite_f64(value))
        return (mn_label){"<span class=\"warning\">not finite</span>"};
    int wanted = decimals < 0 ? -decimals : fixed ? decimals : 3;
    snprintf(digits, sizeof digits, fixed ? "%.*f" : "%.*g", wanted, fabs(value));
    bool minus = value < 0.0 && strspn(digits, "0.") < strlen(digits);
    group_digits(grouped, digits);
    snprintf(label.text, sizeof label.text, "%s%s%s%.8s", minus ? "\xe2\x88\x92" : "", grouped,
             *unit ? "&#160;" : "", unit);
    return label;
}

mn_label mn_signed(double value)
{
    mn_label label, plain = mn_number(value, 2, "");
    bool plus = mn_isfinite_f64(value) && value >= 0.005; /* else it shows as 0.00 */
    snprintf(label.text, sizeof label.text, "%s%.100s", plus ? "+" : "", plain.text);
    return label;
}
