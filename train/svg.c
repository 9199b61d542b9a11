/* SVG elements from values.
 *
 * No library: a picture of lines, bars and words is a page of markup. Coordinates have one decimal,
 * a tenth of a pixel, which keeps a curve of hundreds of points small. */
#include "svg.h"

#include <errno.h>
#include <string.h>

#define LEFT 60.0
#define RIGHT 20.0
#define TOP 30.0
#define BOTTOM 45.0

static double px(const svg_panel *p, double x)
{
    return LEFT + (x - p->x0) / (p->x1 - p->x0) * (SVG_WIDTH - LEFT - RIGHT);
}

static double py(const svg_panel *p, double y)
{
    const double height = SVG_PANEL_HEIGHT - TOP - BOTTOM;
    return p->top + TOP + height - (y - p->y0) / (p->y1 - p->y0) * height;
}

mok_status svg_open(FILE **out, const char *path, int panels, char *why)
{
    *out = fopen(path, "w");
    if (*out == NULL) {
        return train_fail(why, MOK_ERROR_FILE, "%s: %s", path, strerror(errno));
    }
    (void)fprintf(*out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  SVG_WIDTH, SVG_PANEL_HEIGHT * panels);
    return MOK_OK;
}

mok_status svg_close(FILE *file, const char *path, char *why)
{
    (void)fprintf(file, "</svg>\n");
    const bool whole = fflush(file) == 0 && ferror(file) == 0;
    const int cause = errno;
    if (fclose(file) != 0 || !whole) {
        return train_fail(why, MOK_ERROR_FILE, "%s: %s", path, strerror(whole ? errno : cause));
    }
    return MOK_OK;
}

static void text_at(const svg_panel *p, double x, double y, const char *anchor, const char *text)
{
    (void)fprintf(p->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
                  anchor, text);
}

void svg_axes(const svg_panel *p, const char *title, const char *x_name, int ticks)
{
    char number[32];
    text_at(p, LEFT, p->top + 20, "start", title);
    for (int i = 0; i <= ticks; i++) {
        const double y = p->y0 + (p->y1 - p->y0) * i / ticks;
        const double x = p->x0 + (p->x1 - p->x0) * i / ticks;
        svg_level(p, y, "#ddd");
        (void)snprintf(number, sizeof number, "%.2f", y);
        text_at(p, LEFT - 6, py(p, y) + 4, "end", number);
        (void)snprintf(number, sizeof number, "%.0f", x);
        text_at(p, px(p, x), p->top + SVG_PANEL_HEIGHT - BOTTOM + 16, "middle", number);
    }
    text_at(p, (LEFT + SVG_WIDTH - RIGHT) / 2, p->top + SVG_PANEL_HEIGHT - 10, "middle", x_name);
}

void svg_bar(const svg_panel *p, double x, double width, double height, const char *colour)
{
    (void)fprintf(
        p->file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n",
        px(p, x), py(p, height), px(p, x + width) - px(p, x), py(p, p->y0) - py(p, height), colour);
}

void svg_level(const svg_panel *p, double y, const char *colour)
{
    (void)fprintf(p->file,
                  "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", LEFT,
                  SVG_WIDTH - RIGHT, py(p, y), py(p, y), colour);
}

void svg_curve_begin(const svg_panel *p, const char *colour, double width)
{
    (void)fprintf(p->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" points=\"",
                  colour, width);
}

void svg_curve_point(const svg_panel *p, double x, double y)
{
    (void)fprintf(p->file, "%.1f,%.1f ", px(p, x), py(p, y));
}

void svg_curve_end(const svg_panel *p)
{
    (void)fprintf(p->file, "\"/>\n");
}
