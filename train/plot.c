/* Two SVG files: the loss over steps, and how evenly experts are used. No library draws curves of a
 * few hundred points better than forty lines of markup, and SVG is text. */
#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define WIDTH 720.0
#define HEIGHT 400.0
#define LEFT 60.0
#define RIGHT 20.0
#define TOP 30.0
#define BOTTOM 45.0

typedef struct frame {
    FILE *file;
    double x0, x1, y0, y1; /* values at the edges */
} frame;

static double px(const frame *f, double x)
{
    return LEFT + (x - f->x0) / (f->x1 - f->x0) * (WIDTH - LEFT - RIGHT);
}

static double py(const frame *f, double y)
{
    return HEIGHT - BOTTOM - (y - f->y0) / (f->y1 - f->y0) * (HEIGHT - TOP - BOTTOM);
}

static mok_status begin_plot(frame *f, const train_config *config, const char *name,
                             const char *title, char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    (void)snprintf(path, sizeof path, "%s/%s", config->out_path, name);
    f->file = fopen(path, "w");
    if (f->file == NULL) {
        return train_fail(why, MOK_ERROR_FILE, "%s: %s", path, strerror(errno));
    }
    (void)fprintf(f->file,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                  "font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"%.0f\" y=\"20\" font-size=\"14\">%s</text>\n",
                  WIDTH, HEIGHT, LEFT, title);
    return MOK_OK;
}

static void draw_axes(const frame *f, const char *x_name, int ticks)
{
    for (int i = 0; i <= ticks; i++) {
        const double y = f->y0 + (f->y1 - f->y0) * i / ticks;
        const double x = f->x0 + (f->x1 - f->x0) * i / ticks;
        (void)fprintf(f->file,
                      "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>"
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.0f</text>\n",
                      LEFT, WIDTH - RIGHT, py(f, y), py(f, y), LEFT - 6, py(f, y) + 4, y, px(f, x),
                      HEIGHT - BOTTOM + 16, x);
    }
    (void)fprintf(f->file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                  (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name);
}

static mok_status end_plot(frame *f, const char *name, char *why)
{
    (void)fprintf(f->file, "</svg>\n");
    if (ferror(f->file) != 0) {
        (void)fclose(f->file);
        return train_fail(why, MOK_ERROR_FILE, "%s: write error", name);
    }
    return fclose(f->file) == 0 ? MOK_OK
                                : train_fail(why, MOK_ERROR_FILE, "%s: %s", name, strerror(errno));
}

static void draw_curve(const frame *f, const report *r, bool held_out)
{
    (void)fprintf(f->file, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\" points=\"",
                  held_out ? "#d62728" : "#1f77b4", held_out ? "2" : "1.2");
    for (int64_t i = 0; i < r->count; i++) {
        const step_record *record = &r->record[i];
        if (!held_out || record->has_held_out) {
            (void)fprintf(f->file, "%.1f,%.1f ", px(f, (double)record->step),
                          py(f, held_out ? record->held_out : record->loss));
        }
    }
    (void)fprintf(f->file, "\"/>\n");
}

static mok_status plot_loss(const report *r, char *why)
{
    frame f = {NULL, (double)r->begin_step, (double)r->config->steps, 0.0, 1.0};
    for (int64_t i = 0; i < r->count; i++) {
        f.y1 = r->record[i].loss > f.y1 ? r->record[i].loss : f.y1;
    }
    TRAIN_TRY(begin_plot(&f, r->config, "loss.svg",
                         "Loss in nats a byte: training (blue), held out (red)", why));
    draw_axes(&f, "step", 5);
    draw_curve(&f, r, false);
    draw_curve(&f, r, true);
    return end_plot(&f, "loss.svg", why);
}

static mok_status plot_load(const report *r, char *why)
{
    const train_shape *s = &r->config->shape;
    const int64_t bars = s->blocks * s->experts;
    frame f = {NULL, 0.0, (double)bars, 0.0, 1.5};
    for (int64_t i = 0; i < bars; i++) {
        f.y1 = r->load[i] > f.y1 ? r->load[i] : f.y1;
    }
    TRAIN_TRY(begin_plot(&f, r->config, "load.svg",
                         "Routes of each expert in the last step, over the mean; blocks in turn",
                         why));
    draw_axes(&f, "block * experts + expert", 5);
    for (int64_t i = 0; i < bars; i++) {
        (void)fprintf(
            f.file, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\"/>\n",
            px(&f, (double)i + 0.1), py(&f, r->load[i]), (px(&f, 1.0) - px(&f, 0.0)) * 0.8,
            py(&f, 0.0) - py(&f, r->load[i]), i / s->experts % 2 == 0 ? "#1f77b4" : "#7fb3d8");
    }
    (void)fprintf(f.file,
                  "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"black\"/>\n",
                  LEFT, WIDTH - RIGHT, py(&f, 1.0), py(&f, 1.0));
    return end_plot(&f, "load.svg", why);
}

mok_status report_plots(const report *r, char *why)
{
    if (r->count == 0) {
        return MOK_OK;
    }
    TRAIN_TRY(plot_loss(r, why));
    return plot_load(r, why);
}
