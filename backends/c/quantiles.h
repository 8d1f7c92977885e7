/* Quantiles. A quantile needs the two values next to a rank. Two values of a sample bound the search, and one pass copies
   the values between them; and again, until few are left. The result does not depend on the sample. Where samples do not
   help, bisection does, so that the work is linear for every order of the values. */

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define FEW 16 /* values that are all compared with one another: the last ones, or a sample */
#define MANY (4 * LONG) /* from so many values on, threads share the work */
#define PIECES 64

/* Copies the values that are neither below `low` nor above `high` into `found`, NaN too. Returns their number; `below`
   is the number of values below `low`. */
static int64_t keep_inside(const double *x, double *found, int64_t n, double low, double high, int64_t *below)
{
    int64_t kept = 0, reach = 0, k = 0;
#ifdef __AVX512F__
    for (; k < n; k += 8) {
        const __mmask8 among = n - k < 8 ? (1 << (n - k)) - 1 : 255;
        const __m512d values = _mm512_maskz_loadu_pd(among, x + k);
        const __mmask8 from = _mm512_mask_cmp_pd_mask(among, values, _mm512_set1_pd(low), _CMP_NLT_UQ);
        const __mmask8 inside = _mm512_mask_cmp_pd_mask(from, values, _mm512_set1_pd(high), _CMP_NGT_UQ);
        const int chosen = __builtin_popcount(inside);
        _mm512_mask_storeu_pd(found + kept, (1 << chosen) - 1, _mm512_maskz_compress_pd(inside, values));
        kept += chosen, reach += __builtin_popcount(from);
    }
#else
    for (; k < n; k++) {
        const int from = !(x[k] < low), inside = from & !(x[k] > high);
        found[kept] = x[k], kept += inside, reach += from;
    }
#endif
    *below = n - reach;
    return kept;
}

/* `keep_inside`, of pieces that threads share if there are MANY values. */
static int64_t keep_of_pieces(
    const double *x, double *found, int64_t n, double low, double high, int64_t *below, int threads)
{
    if (threads == 1 || n <= MANY) return keep_inside(x, found, n, low, high, below);
    const int64_t size = (n + PIECES - 1) / PIECES;
    int64_t kept[PIECES], less[PIECES], total = 0;
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

/* Sorts up to FEW values. How many values are below a value tells its place. NaN takes any place. */
static void sort_few(const double *x, double *sorted, int64_t n)
{
    for (int64_t k = 0; k < n; k++) sorted[k] = x[k];
    for (int64_t k = 0; k < n; k++) {
        int64_t place = 0;
        for (int64_t m = 0; m < n; m++) place += (x[m] < x[k]) | ((x[m] == x[k]) & (m < k));
        sorted[place] = x[k];
    }
}

/* The number of values up to `bound`; NaN counts. */
static int64_t number_up_to(const double *x, int64_t n, double bound)
{
    int64_t more = 0;
#pragma omp simd reduction(+ : more)
    for (int64_t i = 0; i < n; i++) more += x[i] > bound;
    return n - more;
}

static int any_nan(const double *x, int64_t n)
{
    int64_t found = 0;
#pragma omp simd reduction(+ : found)
    for (int64_t k = 0; k < n; k++) found += x[k] != x[k];
    return found > 0;
}

/* Integers of the same order as floats. */
static inline int64_t order_f64(double x) { int64_t i; memcpy(&i, &x, 8); return i ^ ((i >> 63) & INT64_MAX); }
static inline double unorder_f64(int64_t i) { double x; i ^= (i >> 63) & INT64_MAX; memcpy(&x, &i, 8); return x; }

/* The value that sorting puts at k, from `low` to `high`, by bisection of their bits. */
static double place_by_bits(const double *x, int64_t n, int64_t k, double low, double high)
{
    int64_t above = order_f64(high), below = order_f64(low) - 1;
    while ((uint64_t)above - (uint64_t)below > 1) {
        const int64_t middle = (int64_t)((uint64_t)below + ((uint64_t)above - (uint64_t)below) / 2);
        if (number_up_to(x, n, unorder_f64(middle)) > k) above = middle;
        else below = middle;
    }
    return unorder_f64(above);
}

/* The quantile of n values at `level`; NaN if a value is NaN, and 0 instead of -0. `room` has space for 2 n values. */
static double quantile(const double *x, double *room, int64_t n, double level, int threads)
{
    if (!n) return 0;
    const double place = level * (double)(n - 1);
    int64_t k = (int64_t)place;
    const int64_t next = k + 1 < n, half = n; /* it lies between the values that sorting puts at k and k + next */
    const double t = place - (double)k;
    double low, high, a, b, sample[FEW], sorted[FEW];
    for (int round = 0, poor = 0; n > FEW && poor < 5; round++) {
        const int64_t at = k * FEW / n;
        for (int64_t i = 0; i < FEW; i++) sample[i] = x[(2 * i + 1) * n / (2 * FEW)];
        sort_few(sample, sorted, FEW);
        low = at >= 2 ? sorted[at - 2] : -INFINITY, high = at + 2 < FEW ? sorted[at + 2] : INFINITY;
        double *found = room + round % 2 * half;
        int64_t kept, below;
        while (1) {
            kept = keep_of_pieces(x, found, n, low, high, &below, threads);
            if (k < below) {
                if (k + next < below) high = low;
                low = -INFINITY;
            } else if (k + next >= below + kept) {
                if (k >= below + kept) low = high;
                high = INFINITY;
            } else break;
        }
        poor = low == high || kept == n ? 5 : poor + (2 * kept > n);
        x = found, n = kept, k -= below;
    }
    if (any_nan(x, n)) return NAN;
    if (n <= FEW) {
        sort_few(x, sorted, n);
        a = sorted[k], b = sorted[k + next];
    } else {
        a = place_by_bits(x, n, k, low, high);
        b = number_up_to(x, n, a) > k + next ? a : INFINITY;
        for (int64_t i = 0; i < n; i++) b = x[i] > a && x[i] < b ? x[i] : b;
    }
    if (t == 0 || a == b) return a + 0.0;
    if (b - a == INFINITY) return a * (1 - t) + b * t;
    return t < 0.5 ? a + (b - a) * t : b - (b - a) * (1 - t); /* from the nearer end */
}

/* The quantile over each target of the values in `parts` vectors, each with its own fibres. One thread computes a
   quantile, unless it has MANY values. */
typedef struct {
    const double *x;
    const int64_t *order, *members;
} Part;
static void quantiles(double *out, const Part *of, int parts, const double *level, int64_t stride, int64_t targets, int threads)
{
    for (int many = 0; many < 2; many++) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (targets > 1 && !many)
        for (int64_t b = 0; b < targets; b++) {
            int64_t n = 0, k = 0;
            for (const Part *p = of; p < of + parts; p++) n += p->members[b + 1] - p->members[b];
            if ((n > MANY) != many) continue;
            ROOM(room, 3 * n)
            for (const Part *p = of; p < of + parts; p++)
                for (int64_t i = p->members[b]; i < p->members[b + 1]; i++) room[k++] = p->x[p->order ? p->order[i] : i];
            out[b] = quantile(room, room + n, n, level[b * stride], many ? threads : 1);
        }
    }
}
