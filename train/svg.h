/* A small writer of SVG: axes, curves and bars in panels that stand under each other.
 *
 * Text must not hold '<' or '&'. Coordinates are finite, which the trainer has checked of its
 * numbers. */
#ifndef TRAIN_SVG_H
#define TRAIN_SVG_H

#include <stdio.h>

#include "common.h"

#define SVG_WIDTH 720.0
#define SVG_PANEL_HEIGHT 320.0

typedef struct svg_panel {
    FILE *file;
    double top;            /* of the panel, in the picture */
    double x0, x1, y0, y1; /* values at the edges of the plot; x0 < x1, y0 < y1 */
} svg_panel;

/* The file and a white picture of `panels` panels. Errors: FILE. */
mok_status svg_open(FILE **out, const char *path, int panels, char *why);
/* Writes the end and closes. Errors: FILE, also for what could not be written before. */
mok_status svg_close(FILE *file, const char *path, char *why);

void svg_axes(const svg_panel *p, const char *title, const char *x_name, int ticks);
void svg_bar(const svg_panel *p, double x, double width, double height, const char *colour);
void svg_level(const svg_panel *p, double y, const char *colour);
void svg_curve_begin(const svg_panel *p, const char *colour, double width);
void svg_curve_point(const svg_panel *p, double x, double y);
void svg_curve_end(const svg_panel *p);

#endif
