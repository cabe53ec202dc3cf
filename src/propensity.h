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
   parts of s below pi. So they are smooth on a panel MOST_WIDTH wide or, where an arm's spread asks
   for a narrower one, as wide as its POINTS are apart. Both distances are kept as logarithms, since
   half of Beta(0.001, 0.001) is closer to an end than the smallest double.

   The error is below 1e-8 for shapes in [1e-3, 1e6], and rather 1e-10 (tests/test_propensity.py).
   Shapes are taken as at least SMALLEST and, at the same mean, at most LARGEST; there is no input
   for which a result is not a number. */

#ifndef CELLIUM_PROPENSITY_H
#define CELLIUM_PROPENSITY_H

#include <math.h>
#include <stdint.h>

#include "elementary.h"
#include "gauss.h"
#include "philox.h"
#include "variants.h"

enum {
    MOST_ARMS = 5,
    POINTS = 7                          /* of an arm, as far apart as panels may be wide */
};

#define MOST_WIDTH 5.0                  /* of a panel, but far out */
#define FAR_OUT 30.0                    /* from all bends, where powers are pure exponentials */
#define BEYOND 26.0                     /* a smooth density is neglected exp(-this) from an end */
#define OUTSIDE 1e300                   /* coordinate of what is not between low and high */
#define SMALLEST 1e-9
#define LARGEST 1e10

/* A density falls by exp(-depth), at least, from its mode to its points; beyond the outermost it is
   neglected. */
static const double DEPTHS[POINTS / 2] = {25.0, 10.0, 3.0};

/* The law of an arm's score, and how far the sweep is: `below` is the integral of its density up to
   there, `wins` that of the density times the integrals of all others. */
typedef struct {
    double alpha, beta, bias;           /* bias: above the highest, in (-1, 0] */
    double peak;                        /* log of the density by the draw's logit, at its mode */
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
    double point[POINTS];               /* the coordinates of the law's */
    int present;
} Presence;

/* The nodes of a panel: logarithms of both distances, and the distances. */
typedef struct {
    double log_low[GAUSS], log_high[GAUSS], low[GAUSS], high[GAUSS];
} Panel;

ALWAYS_INLINE Stretch stretch_of(double low_bias, int low_one, double high_bias, int high_one)
{
    double width = (high_bias - low_bias) + (high_one - low_one);
    return (Stretch){low_bias, high_bias, low_one, high_one, width, log_of(width)};
}

/* log(x / (1 - x)) to log(x), and to log(1 - x) for the opposite. */
ALWAYS_INLINE double log_of_logit(double logit)
{
    return fmin(logit, 0.0) - log_of(1.0 + exp_of_negative(-fabs(logit)));
}

ALWAYS_INLINE void make_law(Law *law, double alpha, double beta, double bias, int arm)
{
    double down = fmin(1.0, LARGEST / fmax(alpha, beta));
    double a = law->alpha = fmax(alpha * down, SMALLEST);
    double b = law->beta = fmax(beta * down, SMALLEST);
    double mode = log_of(a) - log_of(b), spread = sqrt(1.0 / a + 1.0 / b);
    law->bias = bias > -1e-200 ? 0.0 : bias;
    law->peak = a * log_of_logit(mode) + b * log_of_logit(-mode);
    law->scale = 1.0 / (1.0 / a + 1.0 / b + 2.5 * spread);
    /* By its logit, a density falls as a normal one or as an exponential; as both is enough. */
    for (int i = 0; i < POINTS / 2; i++) {
        double depth = DEPTHS[i], normal = spread * sqrt(2.0 * depth);
        law->point[i] = mode - normal - depth / a;
        law->point[POINTS - 1 - i] = mode + normal + depth / b;
    }
    law->point[POINTS / 2] = mode;
    law->below = law->wins = 0.0;
    law->arm = arm;
}

ALWAYS_INLINE double log_of_distance(double distance)
{
    return distance > 0.0 ? log_of(distance) : -OUTSIDE;
}

/* The coordinate on a stretch of the score whose draw has a logit. Of a score's two distances, the
   one to the draw's nearer end is exact. */
ALWAYS_INLINE double coordinate_of(
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
ALWAYS_INLINE double bend_of(double gap, const Stretch *stretch)
{
    return gap > 0.0 ? fmax(0.0, stretch->log_width - log_of(gap)) : 0.0;
}

/* Where a law is on a stretch. */
ALWAYS_INLINE Presence presence_of(const Law *law, const Stretch *stretch)
{
    Presence presence;
    presence.low_gap = (stretch->low_bias - law->bias) + stretch->low_one;
    presence.high_gap = (law->bias - stretch->high_bias) + (1 - stretch->high_one);
    presence.present = presence.low_gap >= 0.0 && presence.high_gap >= 0.0;
    double least = presence.low_gap > 0.0
        ? -bend_of(presence.low_gap, stretch) - BEYOND : -INFINITY;
    double most = presence.high_gap > 0.0
        ? bend_of(presence.high_gap, stretch) + BEYOND : INFINITY;
    for (int i = 0; i < POINTS; i++) {
        double point = coordinate_of(law->point[i], &presence, stretch);
        presence.point[i] = fmin(fmax(point, least), most);
    }
    return presence;
}

/* How far a panel from a coordinate on may reach, for a law's density to be smooth on it: as far as
   its points there are apart. */
ALWAYS_INLINE double reach_of(const Presence *presence, double from)
{
    const double *point = presence->point;
    int i = 0;
    if (!presence->present || from >= point[POINTS - 1])
        return OUTSIDE;
    if (from < point[0])
        return fmax(point[0], from + (point[1] - point[0]));
    while (from >= point[i + 1])
        i++;
    double reach = from + (point[i + 1] - point[i]);
    if (i + 2 < POINTS)
        reach = fmin(reach, fmax(point[i + 1], from + (point[i + 2] - point[i + 1])));
    return reach;
}

ALWAYS_INLINE void make_panel(Panel *panel, const Stretch *stretch, double middle, double half)
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
ALWAYS_INLINE void widen(
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
ALWAYS_INLINE void densities(
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
ALWAYS_INLINE void sweep_panel(
    Law *laws, const Presence *presence, int count, const Stretch *stretch, double first,
    double last)
{
    double density[MOST_ARMS][GAUSS], below[MOST_ARMS][GAUSS];
    double before[MOST_ARMS][GAUSS], product[GAUSS];
    double half = 0.5 * (last - first);
    int moves[MOST_ARMS];
    Panel panel;
    make_panel(&panel, stretch, first + half, half);
    for (int k = 0; k < count; k++) {
        Law *law = &laws[k];
        moves[k] = presence[k].present && first < presence[k].point[POINTS - 1]
            && last > presence[k].point[0];
        if (moves[k]) {
            densities(law, &presence[k], stretch, &panel, half, density[k]);
            law->below = gauss_integrals(law->below, density[k], below[k]);
        } else {
            for (int i = 0; i < GAUSS; i++)
                below[k][i] = law->below;
        }
    }
    /* Of the product of all others, first what is before k, then what is behind it. */
    for (int i = 0; i < GAUSS; i++)
        product[i] = 1.0;
    for (int k = 0; k < count; k++)
        for (int i = 0; i < GAUSS; i++) {
            before[k][i] = product[i];
            product[i] *= below[k][i];
        }
    for (int i = 0; i < GAUSS; i++)
        product[i] = 1.0;
    for (int k = count - 1; k >= 0; k--) {
        for (int i = 0; moves[k] && i < GAUSS; i++)
            before[k][i] *= density[k][i] * product[i];
        if (moves[k])
            laws[k].wins += gauss_integral(before[k]);
        for (int i = 0; i < GAUSS; i++)
            product[i] *= below[k][i];
    }
}

/* Take the sweep over a stretch. Far out, beyond all bends, densities are pure exponentials for any
   width of a panel. */
ALWAYS_INLINE void sweep_stretch(Law *laws, int count, const Stretch *stretch)
{
    double low_far = -FAR_OUT, high_far = FAR_OUT, from = OUTSIDE, end = -OUTSIDE;
    Presence presence[MOST_ARMS];
    for (int k = 0; k < count; k++) {
        presence[k] = presence_of(&laws[k], stretch);
        if (presence[k].present) {
            low_far = fmin(low_far, -FAR_OUT - bend_of(presence[k].low_gap, stretch));
            high_far = fmax(high_far, FAR_OUT + bend_of(presence[k].high_gap, stretch));
            from = fmin(from, presence[k].point[0]);
            end = fmax(end, presence[k].point[POINTS - 1]);
        }
    }
    while (from < end) {
        double to = end;
        if (from < low_far)
            to = fmin(to, low_far);
        else if (from < high_far)
            to = fmin(to, from + MOST_WIDTH);
        for (int k = 0; k < count; k++)
            to = fmin(to, reach_of(&presence[k], from));
        sweep_panel(laws, presence, count, stretch, from, to);
        from = to;
    }
}

ALWAYS_INLINE void add_in_order(double *numbers, int *count, double number)
{
    int i = (*count)++;
    for (; i > 0 && numbers[i - 1] > number; i--)
        numbers[i] = numbers[i - 1];
    numbers[i] = number;
}

/* The distinct biases, ascending; returned, how many. */
ALWAYS_INLINE int distinct_biases(const Law *laws, int count, double *biases)
{
    int found = 0;
    for (int k = 0; k < count; k++) {
        int known = 0;
        for (int i = 0; i < found; i++)
            known |= biases[i] == laws[k].bias;
        if (!known)
            add_in_order(biases, &found, laws[k].bias);
    }
    return found;
}

ALWAYS_INLINE void find_probabilities(
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
    /* Below the highest bias nobody wins; all that is asked of a law is what lies there. */
    for (int k = 0; k < count; k++)
        if (laws[k].bias < 0.0) {
            Stretch stretch = stretch_of(laws[k].bias, 0, 0.0, 0);
            sweep_stretch(&laws[k], 1, &stretch);
            laws[k].wins = 0.0;
        }
    int steps = distinct_biases(laws, count, ends);
    for (int i = 0; i < steps; i++) {
        Stretch stretch = stretch_of(i ? ends[i - 1] : 0.0, i > 0, ends[i], 1);
        sweep_stretch(laws, count, &stretch);
    }
    for (int k = 0; k < count; k++)
        total += laws[k].wins = fmax(laws[k].wins, 0.0);    /* or less, by rounding */
    for (int k = 0; k < count; k++)
        probability[laws[k].arm] = laws[k].wins / total;
}

#define PROPENSITY_VARIANT(name, attributes)                                                    \
    attributes static void name(                                                                \
        const double *alpha, const double *beta, const double *bias, uint32_t candidates,       \
        double *probability)                                                                    \
    {                                                                                           \
        find_probabilities(alpha, beta, bias, candidates, probability);                         \
    }

PROPENSITY_VARIANT(win_probabilities_plain, )

#if defined(HAS_WIDE_VARIANTS)
PROPENSITY_VARIANT(win_probabilities_avx2, FOR_AVX2)
PROPENSITY_VARIANT(win_probabilities_avx512, FOR_AVX512)
#else
#define win_probabilities_avx2 win_probabilities_plain
#define win_probabilities_avx512 win_probabilities_plain
#endif

/* By one variant, which the processor must have. */
static inline void win_probabilities_with(
    int variant, const double *alpha, const double *beta, const double *bias, uint32_t candidates,
    double *probability)
{
    switch (variant) {
    case AVX512:
        win_probabilities_avx512(alpha, beta, bias, candidates, probability);
        break;
    case AVX2:
        win_probabilities_avx2(alpha, beta, bias, candidates, probability);
        break;
    default:
        win_probabilities_plain(alpha, beta, bias, candidates, probability);
    }
}

/* probability[arm] for the arms of a mask that has one at least; 0 for the others. Shapes are above
   0, biases finite. */
static inline void win_probabilities(
    const double *alpha, const double *beta, const double *bias, uint32_t candidates,
    double *probability)
{
    win_probabilities_with(fastest_variant(), alpha, beta, bias, candidates, probability);
}

#endif
