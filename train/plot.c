/* Two pictures: the loss over the steps, and how evenly the experts are used, at the last step and
 * over the steps. A long run's curves are means over stretches of steps, so that a picture stays
 * small. */
#include "report.h"

#include "svg.h"

#define MOST_POINTS 600

#define BLUE "#1f77b4"
#define LIGHT_BLUE "#7fb3d8"
#define RED "#d62728"

typedef double (*value_fn)(const step_record *record);

static double loss_of(const step_record *record)
{
    return record->loss;
}

static double load_of(const step_record *record)
{
    return record->most_load;
}

static double largest(const report *r, value_fn value, double least)
{
    double most = least;
    for (int64_t i = 0; i < r->count; i++) {
        const double here = value(&r->record[i]);
        most = here > most ? here : most;
    }
    return most;
}

static void draw_mean_curve(const svg_panel *p, const report *r, value_fn value)
{
    const int64_t stretch = (r->count + MOST_POINTS - 1) / MOST_POINTS;
    svg_curve_begin(p, BLUE, 1.2);
    for (int64_t begin = 0; begin < r->count; begin += stretch) {
        const int64_t end = train_min(begin + stretch, r->count);
        double sum = 0.0;
        for (int64_t i = begin; i < end; i++) {
            sum += value(&r->record[i]);
        }
        svg_curve_point(p, (double)r->record[end - 1].step, sum / (double)(end - begin));
    }
    svg_curve_end(p);
}

static void draw_held_out(const svg_panel *p, const report *r)
{
    svg_curve_begin(p, RED, 2.0);
    for (int64_t i = 0; i < r->count; i++) {
        if (r->record[i].has_held_out) {
            svg_curve_point(p, (double)r->record[i].step, r->record[i].held_out);
        }
    }
    svg_curve_end(p);
}

static mok_status plot_loss(const report *r, const char *path, char *why)
{
    svg_panel p = {NULL, 0.0, 0.0, (double)r->config->steps, 0.0, largest(r, loss_of, 1.0)};
    TRAIN_TRY(svg_open(&p.file, path, 1, why));
    svg_axes(&p, "Loss in nats a byte: training (blue), held out (red)", "step", 5);
    draw_mean_curve(&p, r, loss_of);
    draw_held_out(&p, r);
    return svg_close(p.file, path, why);
}

static void draw_bars(FILE *file, const report *r)
{
    const train_shape *s = &r->config->shape;
    const int64_t bars = s->blocks * s->experts;
    svg_panel p = {file, 0.0, 0.0, (double)bars, 0.0, 1.5};
    for (int64_t i = 0; i < bars; i++) {
        p.y1 = r->load[i] > p.y1 ? r->load[i] : p.y1;
    }
    svg_axes(&p, "Routes of each expert at the last step, over the mean",
             "block * experts + expert", 5);
    for (int64_t i = 0; i < bars; i++) {
        svg_bar(&p, (double)i + 0.1, 0.8, r->load[i], i / s->experts % 2 == 0 ? BLUE : LIGHT_BLUE);
    }
    svg_level(&p, 1.0, "black");
}

static mok_status plot_load(const report *r, const char *path, char *why)
{
    FILE *file;
    TRAIN_TRY(svg_open(&file, path, 2, why));
    draw_bars(file, r);
    const svg_panel p = {file, SVG_PANEL_HEIGHT,        0.0, (double)r->config->steps,
                         0.0,  largest(r, load_of, 1.5)};
    svg_axes(&p, "Routes of the busiest expert of any block, over the mean", "step", 5);
    draw_mean_curve(&p, r, load_of);
    svg_level(&p, 1.0, "black");
    return svg_close(file, path, why);
}

mok_status report_plots(const report *r, char *why)
{
    char path[TRAIN_PATH_BYTES + 64];
    if (r->count == 0) {
        return MOK_OK;
    }
    (void)snprintf(path, sizeof path, "%s/loss.svg", r->config->out_path);
    TRAIN_TRY(plot_loss(r, path, why));
    (void)snprintf(path, sizeof path, "%s/load.svg", r->config->out_path);
    return plot_load(r, path, why);
}
