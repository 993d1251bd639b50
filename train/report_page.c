/* train/report_page.c: the text of a page in a growing buffer, escapes and numbers for readers. */
#include "train/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_CAPACITY = 4096, ALIGNMENT = 16, NUMBER_SIZE = 352 };

#define MINUS    "\xe2\x88\x92"
#define INFINITE "\xe2\x88\x9e"
#define REPLACED "\xef\xbf\xbd"

void mn_page_free(mn_page *page)
{
    if (page->text)
        page->allocator.free(page->allocator.user, page->text, page->capacity);
    page->text = NULL;
    page->length = page->capacity = 0;
}

/* Room for `more` bytes and the terminating zero. */
static bool reserve(mn_page *page, size_t more)
{
    size_t needed, capacity;
    if (page->failed || !mn_size_add(page->length, more, &needed) ||
        !mn_size_add(needed, 1, &needed))
        return false;
    if (needed <= page->capacity)
        return true;
    if (!mn_size_mul(page->capacity, 2, &capacity) || capacity < needed)
        capacity = needed < FIRST_CAPACITY ? FIRST_CAPACITY : needed;
    char *text = page->allocator.alloc(page->allocator.user, capacity, ALIGNMENT);
    if (!text)
        return false;
    if (page->text) {
        memcpy(text, page->text, page->length + 1);
        page->allocator.free(page->allocator.user, page->text, page->capacity);
    }
    page->text = text;
    page->capacity = capacity;
    return true;
}

static void append(mn_page *page, const char *bytes, size_t count)
{
    if (!reserve(page, count)) {
        page->failed = true;
        return;
    }
    memcpy(page->text + page->length, bytes, count);
    page->length += count;
    page->text[page->length] = '\0';
}

void mn_page_put(mn_page *page, const char *markup)
{
    append(page, markup, strlen(markup));
}

void mn_page_format(mn_page *page, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0 || !reserve(page, (size_t)length)) {
        page->failed = true;
        return;
    }
    va_start(arguments, format);
    vsnprintf(page->text + page->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    page->length += (size_t)length;
}

void mn_page_escape(mn_page *page, const char *text)
{
    for (; text && *text; text++) {
        if (*text == '&')
            mn_page_put(page, "&amp;");
        else if (*text == '<')
            mn_page_put(page, "&lt;");
        else if (*text == '>')
            mn_page_put(page, "&gt;");
        else if (*text == '"')
            mn_page_put(page, "&quot;");
        else if ((unsigned char)*text < 0x20 || *text == 0x7f)
            mn_page_put(page, REPLACED);
        else
            append(page, text, 1);
    }
}

void mn_page_precision(mn_page *page, const char *precision)
{
    for (; *precision; precision++) {
        char letter[2] = {*precision, '\0'};
        if (letter[0] >= 'a' && letter[0] <= 'z')
            letter[0] = (char)(letter[0] - 'a' + 'A');
        mn_page_escape(page, letter);
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool special(mn_page *page, double value)
{
    if (isnan(value))
        mn_page_put(page, "<span class=\"none\">not measured</span>");
    else if (isinf(value))
        mn_page_put(page, value > 0.0 ? INFINITE : MINUS INFINITE);
    return !isfinite(value);
}

/* Digits of a number without sign; thousands are set apart by a narrow space. */
static void put_digits(mn_page *page, const char *digits)
{
    size_t whole = strspn(digits, "0123456789");
    for (size_t i = 0; i < whole; i++) {
        append(page, digits + i, 1);
        if (whole > 4 && i + 1 < whole && (whole - i - 1) % 3 == 0)
            mn_page_put(page, "&#8239;");
    }
    mn_page_put(page, digits + whole);
}

static void put_number(mn_page *page, double value, int decimals, const char *plus)
{
    char digits[NUMBER_SIZE];
    if (special(page, value))
        return;
    snprintf(digits, sizeof digits, "%.*f", decimals, fabs(value));
    bool zero = strspn(digits, "0.") == strlen(digits);
    mn_page_put(page, zero ? "" : value < 0.0 ? MINUS : plus);
    put_digits(page, digits);
}

void mn_page_number(mn_page *page, double value, int decimals)
{
    put_number(page, value, decimals, "");
}

void mn_page_signed(mn_page *page, double value, int decimals)
{
    put_number(page, value, decimals, "+");
}

void mn_page_general(mn_page *page, double value, int digits)
{
    char text[64];
    if (special(page, value))
        return;
    snprintf(text, sizeof text, "%.*g", digits, fabs(value));
    mn_page_put(page, value < 0.0 ? MINUS : "");
    put_digits(page, text);
}
