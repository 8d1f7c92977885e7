/* Quantiles. A quantile needs the two values next to a rank. Two values of a sample bound the search, and one pass, which
   is vector code, copies the values between them; and again, until few are left. The result does not depend on the
   sample. Where samples do not help, bisection does, so that the work is linear for every order of the values. */

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define FEW 16 /* values that are all compared with one another: the last ones, or a sample */
#define MANY (4 * LONG) /* from so many values on, the sample is large, and threads share the work */
#define SAMPLE 1024
#define PIECES 64

#ifdef __AVX512F__
/* Copies those of the first values of a vector, which `among` chooses, that are neither below `lows` nor above `highs`. */
static inline __attribute__((always_inline)) int64_t keep_of_vector(
    const double *x, double *found, __mmask8 among, __m512d lows, __m512d highs, int64_t *reach)
{
    const __m512d values = _mm512_maskz_loadu_pd(among, x);
    const __mmask8 from = _mm512_mask_cmp_pd_mask(among, values, lows, _CMP_NLT_UQ);
    const __mmask8 inside = _mm512_mask_cmp_pd_mask(from, values, highs, _CMP_NGT_UQ);
    const int kept = __builtin_popcount(inside);
    const __m512d chosen = _mm512_maskz_compress_pd(inside, values);
    if (among == 255) _mm512_storeu_pd(found, chosen);
    else _mm512_mask_storeu_pd(found, (__mmask8)((1 << kept) - 1), chosen);
    *reach += __builtin_popcount(from);
    return kept;
}
#endif

/* Copies the values that are neither below `low` nor above `high` into `found`, NaN too. Returns their number; `below`
   is the number of values below `low`. */
static int64_t keep_inside(const double *x, double *found, int64_t n, double low, double high, int64_t *below)
{
    int64_t kept = 0, reach = 0, k = 0;
#ifdef __AVX512F__
    const __m512d lows = _mm512_set1_pd(low), highs = _mm512_set1_pd(high);
    for (; k + 8 <= n; k += 8) kept += keep_of_vector(x + k, found + kept, 255, lows, highs, &reach);
    if (k < n) kept += keep_of_vector(x + k, found + kept, (__mmask8)((1 << (n - k)) - 1), lows, highs, &reach);
#else
    uint8_t inside[64];
    for (; k < n; k += 64) {
        const int size = n - k < 64 ? (int)(n - k) : 64;
        int from = 0;
#pragma omp simd reduction(+ : from)
        for (int i = 0; i < size; i++) {
            const double value = x[k + i];
            inside[i] = !((value < low) | (value > high)), from += !(value < low);
        }
        reach += from;
        for (int i = 0; i < size; i++) found[kept] = x[k + i], kept += inside[i];
    }
#endif
    *below = n - reach;
    return kept;
}

/* The values that sorting up to FEW values puts at i and at j. How many values are below a value tells its place. */
static inline __attribute__((always_inline)) void places_of_few(
    const double *x, int64_t n, int64_t i, int64_t j, double *at_i, double *at_j)
{
    double copy[FEW], low = -INFINITY, high = -INFINITY;
    int64_t below[FEW];
    for (int k = 0; k < FEW; k++) copy[k] = k < n ? x[k] : INFINITY, below[k] = 0;
    for (int k = 0; k < FEW; k++) {
        const double value = copy[k];
#pragma omp simd
        for (int m = 0; m < FEW; m++) below[m] += value < copy[m];
    }
#pragma omp simd reduction(max : low, high)
    for (int m = 0; m < FEW; m++) {
        const double u = below[m] <= i ? copy[m] : -INFINITY, v = below[m] <= j ? copy[m] : -INFINITY;
        low = MORE(low, u), high = MORE(high, v);
    }
    *at_i = low, *at_j = high;
}

static int any_nan(const double *x, int64_t n)
{
    int64_t found = 0;
#pragma omp simd reduction(+ : found)
    for (int64_t k = 0; k < n; k++) found += x[k] != x[k];
    return found > 0;
}

/* The values that sorting puts at k and at k + next, both from `low` to `high`, by bisection of their bits. */
static void neighbours_by_bits(
    const double *x, int64_t n, int64_t k, int next, double low, double high, double *at_k, double *after)
{
    int64_t above = order_f64(high), below = order_f64(low) - 1;
    while ((uint64_t)above - (uint64_t)below > 1) {
        const int64_t middle = (int64_t)((uint64_t)below + ((uint64_t)above - (uint64_t)below) / 2);
        const double bound = unorder_f64(middle);
        int64_t more = 0;
#pragma omp simd reduction(+ : more)
        for (int64_t i = 0; i < n; i++) more += x[i] > bound;
        if (n - more > k + next) above = middle;
        else if (n - more <= k) below = middle;
        else { /* the bound lies between the two */
            *at_k = -INFINITY, *after = INFINITY;
            for (int64_t i = 0; i < n; i++) {
                if (x[i] <= bound) *at_k = MORE(*at_k, x[i]);
                else *after = x[i] < *after ? x[i] : *after;
            }
            return;
        }
    }
    *at_k = *after = unorder_f64(above);
}

/* `keep_inside`, of pieces that threads share. */
static int64_t keep_of_pieces(
    const double *x, double *found, int64_t n, double low, double high, int64_t *below, int threads)
{
    const int64_t size = (n + PIECES - 1) / PIECES;
    int64_t kept[PIECES], less[PIECES], total = 0;
    (void)threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t p = 0; p < PIECES; p++) {
        const int64_t from = p * size < n ? p * size : n, to = from + size < n ? from + size : n;
        kept[p] = keep_inside(x + from, found + from, to - from, low, high, &less[p]);
    }
    *below = 0;
    for (int64_t p = 0; p < PIECES; p++) {
        memmove(found + total, found + p * size, (size_t)kept[p] * sizeof *found);
        total += kept[p], *below += less[p];
    }
    return total;
}

static void bounds_of_many(const double *x, int64_t n, int64_t k, double *low, double *high);

/* The values that sorting puts at k and at k + next, which is k or k + 1; both are NaN if a value is NaN. `room` has
   space for 2 n values. */
static void neighbours(
    const double *x, double *room, int64_t n, int64_t k, int next, int threads, double *at_k, double *after)
{
    const int64_t half = n;
    int64_t kept, below;
    for (int round = 0, poor = 0; n > FEW; round++, n = kept, k -= below) {
        double low, high;
        if (n > MANY) bounds_of_many(x, n, k, &low, &high);
        else {
            double sample[FEW];
            const int64_t at = k * FEW / n;
            for (int i = 0; i < FEW; i++) sample[i] = x[(2 * i + 1) * (uint64_t)n / (2 * FEW)];
            places_of_few(sample, FEW, at - 2, at + 2, &low, &high);
            if (at + 2 >= FEW) high = INFINITY;
        }
        double *found = room + round % 2 * half;
        while (1) {
            kept = n > MANY && threads > 1 ? keep_of_pieces(x, found, n, low, high, &below, threads)
                                           : keep_inside(x, found, n, low, high, &below);
            if (k < below) {
                if (k + next < below) high = low;
                low = -INFINITY;
            } else if (k + next >= below + kept) {
                if (k >= below + kept) low = high;
                high = INFINITY;
            } else break;
        }
        x = found;
        poor += 2 * kept > n;
        if (low == high || kept == n || poor > 4) {
            n = kept, k -= below;
            if (any_nan(x, n)) *at_k = *after = NAN;
            else if (low == high) *at_k = *after = low;
            else neighbours_by_bits(x, n, k, next, low, high, at_k, after);
            return;
        }
    }
    places_of_few(x, n, k, k + next, at_k, after);
    if (any_nan(x, n)) *at_k = *after = NAN;
}

/* Two values of a large sample, between which the value at k lies, unless the sample is very uneven. */
static void bounds_of_many(const double *x, int64_t n, int64_t k, double *low, double *high)
{
    double sample[3 * SAMPLE], other;
    const int64_t at = k * SAMPLE / n;
    for (int64_t i = 0; i < SAMPLE; i++) sample[i] = x[(2 * i + 1) * n / (2 * SAMPLE)];
    const int64_t away = 2 + (int64_t)(2.5 * __builtin_sqrt((double)(at * (SAMPLE - at)) / SAMPLE));
    *low = -INFINITY, *high = INFINITY;
    if (at >= away) neighbours(sample, sample + SAMPLE, SAMPLE, at - away, 0, 1, low, &other);
    if (at + away < SAMPLE) neighbours(sample, sample + SAMPLE, SAMPLE, at + away, 0, 1, high, &other);
}

/* a + t (b - a), computed from the nearer end; 0 instead of -0. */
static double between(double a, double b, double t)
{
    if (t == 0 || a == b) return a + 0.0;
    if (b - a == INFINITY) return a * (1 - t) + b * t;
    return t < 0.5 ? a + (b - a) * t : b - (b - a) * (1 - t);
}

/* The quantile of n values at `level`; NaN if a value is NaN. `room` has space for 2 n values. */
static double quantile(const double *x, double *room, int64_t n, double level, int threads)
{
    if (!n) return 0;
    const double place = level * (double)(n - 1);
    const int64_t k = (int64_t)place;
    double a, b;
    neighbours(x, room, n, k, k + 1 < n, threads, &a, &b);
    return between(a, b, place - (double)k);
}

/* The quantile over each target of the values in `parts` vectors, each with its own fibres. One thread computes a
   quantile, unless it has MANY values. */
static void quantiles(double *out, int parts, const double *const *x, const int64_t *const *order,
                      const int64_t *const *members, const double *level, int64_t stride, int64_t targets, int threads)
{
    (void)threads;
    for (int many = 0; many < 2; many++) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (targets > 1 && !many)
        for (int64_t b = 0; b < targets; b++) {
            int64_t n = 0;
            for (int p = 0; p < parts; p++) n += members[p][b + 1] - members[p][b];
            if ((n > MANY) != many) continue;
            double *room = reserve(3 * n), *end = room + 2 * n;
            const double *values = end;
            for (int p = 0; p < parts; p++)
                if (parts == 1 && !order[p]) values = x[p] + members[p][b];
                else
                    for (int64_t k = members[p][b]; k < members[p][b + 1]; k++)
                        *end++ = x[p][order[p] ? order[p][k] : k];
            out[b] = quantile(values, room, n, level[b * stride], many ? threads : 1);
            __builtin_free(room);
        }
    }
}
