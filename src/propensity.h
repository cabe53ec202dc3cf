/* The probability of each arm that its score, a draw from its Beta law plus its bias, is the
   highest: what Thompson sampling chooses an arm with.

   With f_k the density and F_k the distribution function of arm k's score, that is the integral of
   f_a times the product of the F_k of all others (Thompson, "On the likelihood that one unknown
   probability exceeds another", Biometrika 25, 1933). Only densities up to a factor are needed: one
   sweep from the lowest score to the highest integrates them panel by panel, by Gauss and Legendre,
   and has F_k up to the same factor at every node. The probabilities then are what the arms'
   integrals are of their sum.

   What makes that exact are coordinates and panels. Densities have no Taylor series where an arm's
   support begins or ends, so no panel contains such a place: between two of them, `low` and `high`,
   a score z has the coordinate s = log((z - low) / (high - z)). Seen by s, a power of the distance
   to an end is an exponential, and whatever its exponent all densities are analytic for imaginary
   parts of s below pi, so that a panel MOST_WIDTH wide is smooth; a narrower one comes from each
   arm's POINTS, which follow its spread. Both distances are kept as logarithms, since half of
   Beta(0.001, 0.001) is closer to an end than the smallest double.

   The error is below 1e-8 for shapes in [1e-3, 1e6] (tests/test_propensity.py), and rather 1e-10.
   Shapes are taken as at least SMALLEST and, at the same mean, at most LARGEST; there is no input
   for which a result is not a number. */

#ifndef CELLIUM_PROPENSITY_H
#define CELLIUM_PROPENSITY_H

#include <math.h>
#include <stdint.h>

#include "elementary.h"
#include "gauss.h"

enum {
    MOST_ARMS = 5,
    POINTS = 5,                         /* of an arm, where panels end */
    MOST_POINTS = POINTS * MOST_ARMS + 2
};

#define MOST_WIDTH 6.0
#define NEAR_DEPTH 10.0                 /* a density falls by exp(-depth), at least, from its mode */
#define FAR_DEPTH 25.0                  /* to its points; beyond the far ones it is neglected */
#define BEYOND 26.0                     /* and a smooth density within exp(-this) of an end */
#define OUTSIDE 1e300                   /* coordinate of what is not between low and high */
#define SMALLEST 1e-9
#define LARGEST 1e10

/* The law of one arm's score. `below` is its distribution function, where the sweep is, times
   `total`, which it has in the end; `wins` likewise. */
typedef struct {
    double alpha, beta, bias;           /* bias: above the highest, in (-1, 0] */
    double peak;                        /* logarithm of the density by the draw's logit, at its mode */
    double scale;                       /* the density's factor, which keeps `below` near 1 */
    double point[POINTS];               /* logits of the draw, ascending */
    double below, wins;
    int arm;
} Law;

/* Scores between neighbouring ends of supports. An end is a bias, or a bias plus 1; both are kept
   apart, so that differences are exact. */
typedef struct {
    double low_bias, high_bias;
    int low_one, high_one;
    double width, log_width;
} Stretch;

/* What a law has on a stretch. Gaps: from the support's beginning to low, from high to its end. */
typedef struct {
    double low_gap, high_gap;
    double first, last;                 /* coordinates between which its density counts */
    int present;
} Presence;

/* The nodes of a panel: logarithms of both distances, and the distances. */
typedef struct {
    double log_low[GAUSS], log_high[GAUSS], low[GAUSS], high[GAUSS];
} Panel;

/* log(x / (1 - x)) to log(x), and to log(1 - x) for the opposite. */
static inline double log_of_logit(double logit)
{
    return fmin(logit, 0.0) - log_of(1.0 + exp_of_negative(-fabs(logit)));
}

static inline void make_law(Law *law, double alpha, double beta, double bias, int arm)
{
    double down = fmin(1.0, LARGEST / fmax(alpha, beta));
    double a = law->alpha = fmax(alpha * down, SMALLEST);
    double b = law->beta = fmax(beta * down, SMALLEST);
    double mode = log_of(a) - log_of(b), spread = sqrt(1.0 / a + 1.0 / b);
    law->bias = bias > -1e-200 ? 0.0 : bias;
    law->peak = a * log_of_logit(mode) + b * log_of_logit(-mode);
    law->scale = 1.0 / (1.0 / a + 1.0 / b + 2.5 * spread);
    /* By its logit, a density falls as a normal one or as an exponential; as both is enough. */
    for (int i = 0; i < 2; i++) {
        double depth = i ? NEAR_DEPTH : FAR_DEPTH, normal = spread * sqrt(2.0 * depth);
        law->point[i] = mode - normal - depth / a;
        law->point[POINTS - 1 - i] = mode + normal + depth / b;
    }
    law->point[POINTS / 2] = mode;
    law->below = law->wins = 0.0;
    law->arm = arm;
}

static inline double log_of_distance(double distance)
{
    return distance > 0.0 ? log_of(distance) : -OUTSIDE;
}

/* The coordinate on a stretch of the score whose draw has a logit. Of a score's two distances, the
   one to the draw's nearer end is exact. */
static inline double coordinate_of(
    double logit, const Presence *presence, const Stretch *stretch)
{
    double odds = exp_of_negative(-fabs(logit)), draw = odds / (1.0 + odds);
    if (logit < 0.0) {
        double low = draw - presence->low_gap;
        return (presence->low_gap > 0.0 ? log_of_distance(low) : log_of_logit(logit))
            - log_of_distance(stretch->width - low);
    }
    double high = draw - presence->high_gap;
    return log_of_distance(stretch->width - high)
        - (presence->high_gap > 0.0 ? log_of_distance(high) : log_of_logit(-logit));
}

/* How far from the middle of a stretch a power of the distance to an end changes its exponent, if
   that end is outside by a gap. */
static inline double bend_of(double gap, const Stretch *stretch)
{
    return gap > 0.0 ? fmax(0.0, stretch->log_width - log_of(gap)) : 0.0;
}

static inline void add_point(double *points, int *count, double point)
{
    int i = *count;
    for (; i > 0 && points[i - 1] > point; i--)
        points[i] = points[i - 1];
    points[i] = point;
    (*count)++;
}

/* Where a law is on a stretch; its points there go to `points`, ascending. */
static inline Presence presence_of(
    const Law *law, const Stretch *stretch, double *points, int *count)
{
    Presence presence;
    presence.low_gap = (stretch->low_bias - law->bias) + stretch->low_one;
    presence.high_gap = (law->bias - stretch->high_bias) + (1 - stretch->high_one);
    presence.present = presence.low_gap >= 0.0 && presence.high_gap >= 0.0;
    presence.first = OUTSIDE;
    presence.last = -OUTSIDE;
    double least = presence.low_gap > 0.0
        ? -bend_of(presence.low_gap, stretch) - BEYOND : -INFINITY;
    double most = presence.high_gap > 0.0
        ? bend_of(presence.high_gap, stretch) + BEYOND : INFINITY;
    for (int i = 0; presence.present && i < POINTS; i++) {
        double point = coordinate_of(law->point[i], &presence, stretch);
        point = fmin(fmax(point, least), most);
        add_point(points, count, point);
        presence.first = fmin(presence.first, point);
        presence.last = fmax(presence.last, point);
    }
    return presence;
}

static inline void make_panel(Panel *panel, const Stretch *stretch, double middle, double half)
{
    for (int i = 0; i < GAUSS; i++) {
        double s = middle + half * GAUSS_NODES[i];
        double odds = exp_of_negative(-fabs(s)), sum = 1.0 + odds, log_sum = log_of(sum);
        double more = stretch->width / sum, less = odds * more;
        panel->low[i] = either(s < 0.0, less, more);
        panel->high[i] = either(s < 0.0, more, less);
        panel->log_low[i] = stretch->log_width + (either(s < 0.0, s, 0.0) - log_sum);
        panel->log_high[i] = stretch->log_width + (either(s < 0.0, 0.0, -s) - log_sum);
    }
}

/* The logarithm of the distances to an end that is outside of a stretch by a gap. */
static inline void widen(
    double gap, const double *restrict distance, const double *restrict log_distance,
    double *restrict log_wider)
{
    if (gap > 0.0)
        for (int i = 0; i < GAUSS; i++)
            log_wider[i] = log_of(gap + distance[i]);
    else
        for (int i = 0; i < GAUSS; i++)
            log_wider[i] = log_distance[i];
}

/* A law's density by the coordinate, times half the panel's width. It is at most that by the logit
   of the draw, since both ends are nearer; rounding must not lift it above. */
static inline void densities(
    const Law *law, const Presence *presence, const Stretch *stretch, const Panel *panel,
    double half, double *restrict density)
{
    double log_draw[GAUSS], log_rest[GAUSS];
    widen(presence->low_gap, panel->low, panel->log_low, log_draw);
    widen(presence->high_gap, panel->high, panel->log_high, log_rest);
    double factor = half * law->scale, shift = stretch->log_width + law->peak;
    for (int i = 0; i < GAUSS; i++) {
        double power = law->alpha * log_draw[i] + law->beta * log_rest[i];
        double slope = (panel->log_low[i] - log_draw[i]) + (panel->log_high[i] - log_rest[i]);
        double exponent = (power - shift) + slope;
        density[i] = factor * exp_of_negative(either(exponent > 0.0, 0.0, exponent));
    }
}

/* Take the sweep over one panel. */
static inline void sweep_panel(
    Law *laws, const Presence *presence, int count, const Stretch *stretch, double first,
    double last)
{
    double density[MOST_ARMS][GAUSS], below[MOST_ARMS][GAUSS], others[GAUSS];
    double half = 0.5 * (last - first);
    int moves[MOST_ARMS];
    Panel panel;
    make_panel(&panel, stretch, first + half, half);
    for (int k = 0; k < count; k++) {
        Law *law = &laws[k];
        moves[k] = presence[k].present && first < presence[k].last && last > presence[k].first;
        if (moves[k]) {
            densities(law, &presence[k], stretch, &panel, half, density[k]);
            law->below = gauss_integrals(law->below, density[k], below[k]);
        } else {
            for (int i = 0; i < GAUSS; i++)
                below[k][i] = law->below;
        }
    }
    for (int k = 0; k < count; k++) {
        if (!moves[k])
            continue;
        for (int i = 0; i < GAUSS; i++)
            others[i] = density[k][i];
        for (int other = 0; other < count; other++)
            for (int i = 0; other != k && i < GAUSS; i++)
                others[i] *= below[other][i];
        laws[k].wins += gauss_integral(others);
    }
}

/* Take the sweep over a stretch: panels between the points of all laws, in equal parts where those
   are too wide. Far out, beyond all bends, densities are pure exponentials for any width. */
static inline void sweep_stretch(Law *laws, int count, const Stretch *stretch)
{
    double points[MOST_POINTS], low_bend = 0.0, high_bend = 0.0;
    Presence presence[MOST_ARMS];
    int found = 0;
    for (int k = 0; k < count; k++) {
        presence[k] = presence_of(&laws[k], stretch, points, &found);
        if (presence[k].present) {
            low_bend = fmax(low_bend, bend_of(presence[k].low_gap, stretch));
            high_bend = fmax(high_bend, bend_of(presence[k].high_gap, stretch));
        }
    }
    if (found == 0)
        return;
    double low_far = fmin(-45.0, -low_bend - 8.0), high_far = fmax(45.0, high_bend + 8.0);
    double lowest = points[0], highest = points[found - 1];
    if (lowest < low_far && low_far < highest)
        add_point(points, &found, low_far);
    if (lowest < high_far && high_far < highest)
        add_point(points, &found, high_far);
    for (int i = 0; i + 1 < found; i++) {
        double width = points[i + 1] - points[i];
        int is_far = points[i + 1] <= low_far || points[i] >= high_far;
        int parts = is_far || width <= MOST_WIDTH ? 1 : (int)ceil(width / MOST_WIDTH);
        for (int part = 0; width > 0.0 && part < parts; part++)
            sweep_panel(
                laws, presence, count, stretch, points[i] + width * part / parts,
                points[i] + width * (part + 1) / parts);
    }
}

/* The distinct biases, ascending; returned, how many. */
static inline int distinct_biases(const Law *laws, int count, double *biases)
{
    int found = 0;
    for (int k = 0; k < count; k++) {
        int known = 0;
        for (int i = 0; i < found; i++)
            known |= biases[i] == laws[k].bias;
        if (!known)
            add_point(biases, &found, laws[k].bias);
    }
    return found;
}

/* probability[arm] for the arms of a mask that has one at least; 0 for the others. Shapes are above
   0, biases finite. */
static inline void win_probabilities(
    const double *alpha, const double *beta, const double *bias, uint32_t candidates,
    double *probability)
{
    Law laws[MOST_ARMS];
    double ends[MOST_ARMS], highest = -INFINITY, total = 0.0;
    int count = 0;
    for (int arm = 0; arm < MOST_ARMS; arm++) {
        probability[arm] = 0.0;
        if (candidates >> arm & 1)
            highest = fmax(highest, bias[arm]);
    }
    /* Who cannot reach the lowest score of another never wins. */
    for (int arm = 0; arm < MOST_ARMS; arm++)
        if (candidates >> arm & 1 && bias[arm] - highest > -1.0)
            make_law(&laws[count++], alpha[arm], beta[arm], bias[arm] - highest, arm);
    if (count == 1) {
        probability[laws[0].arm] = 1.0;
        return;
    }
    int steps = distinct_biases(laws, count, ends);
    for (int i = 0; i + 1 < 2 * steps; i++) {
        Stretch stretch;
        stretch.low_one = i >= steps;
        stretch.high_one = i + 1 >= steps;
        stretch.low_bias = ends[i % steps];
        stretch.high_bias = ends[(i + 1) % steps];
        stretch.width = (stretch.high_bias - stretch.low_bias)
            + (stretch.high_one - stretch.low_one);
        stretch.log_width = log_of(stretch.width);
        sweep_stretch(laws, count, &stretch);
    }
    for (int k = 0; k < count; k++)
        total += laws[k].wins = fmax(laws[k].wins, 0.0);    /* or less, by rounding */
    for (int k = 0; k < count; k++)
        probability[laws[k].arm] = laws[k].wins / total;
}

#endif
