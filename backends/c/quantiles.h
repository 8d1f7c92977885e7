/* Quantiles. A quantile needs the two values next to a rank. Two values of a sample bound the search, and counting,
   which is vector code, tells how many values lie outside. The result does not depend on the sample. One thread
   computes each quantile, because two threads would wait for each other longer than they compute. */

#define FEW 32
#define SAMPLE 256

/* The numbers of values below `low` and above `high`. */
static void count_outside(const double *x, int64_t n, double low, double high, int64_t *below, int64_t *above)
{
    int64_t less = 0, more = 0;
#pragma omp simd reduction(+ : less, more)
    for (int64_t k = 0; k < n; k++) less += x[k] < low, more += x[k] > high;
    *below = less, *above = more;
}

/* Copies the values from `low` to `high` into `found`, which may be `x`. Returns their number. */
static int64_t keep_inside(const double *x, double *found, int64_t n, double low, double high)
{
    int64_t kept = 0;
    for (int64_t k = 0; k < n; k++) {
        const double value = x[k];
        found[kept] = value; /* the next value overwrites it, unless it is kept */
        kept += (value >= low) & (value <= high);
    }
    return kept;
}

/* Sorts up to SAMPLE numbers, NaN at the ends, by counting the rank of each without a branch. */
static void sort(double *x, int64_t n)
{
    int64_t key[SAMPLE], rank[SAMPLE];
    double copy[SAMPLE];
    for (int64_t i = 0; i < n; i++) copy[i] = x[i], key[i] = order_f64(x[i]), rank[i] = 0;
    for (int64_t k = 0; k < n; k++) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) rank[i] += key[k] < key[i] + (k < i);
    }
    for (int64_t i = 0; i < n; i++) x[rank[i]] = copy[i];
}

/* a + t (b - a), computed from the nearer end; 0 instead of -0. */
static double between(double a, double b, double t)
{
    if (t == 0 || a == b) return a + 0.0;
    if (b - a == INFINITY) return a * (1 - t) + b * t;
    return t < 0.5 ? a + (b - a) * t : b - (b - a) * (1 - t);
}

/* `between` of the sorted values at k and at k + next, both from `low` to `high`, by bisection of their bits. */
static double halved(const double *x, int64_t n, int64_t k, int64_t next, double t, double low, double high)
{
    int64_t above = order_f64(high), below = order_f64(low) - 1;
    while ((uint64_t)above - (uint64_t)below > 1) {
        const int64_t middle = (int64_t)((uint64_t)below + ((uint64_t)above - (uint64_t)below) / 2);
        const double bound = unorder_f64(middle);
        int64_t less, more;
        count_outside(x, n, bound, bound, &less, &more);
        if (n - more > k + next) above = middle;
        else if (n - more <= k) below = middle;
        else {
            double a = -INFINITY, b = INFINITY;
            for (int64_t i = 0; i < n; i++) {
                if (x[i] <= bound) a = MORE(a, x[i]);
                else b = x[i] < b ? x[i] : b;
            }
            return between(a, b, t);
        }
    }
    return unorder_f64(above) + 0.0;
}

/* The quantile of n values at `level`; NaN if a value is NaN. `found` has room for n values. */
static double quantile(const double *x, double *found, int64_t n, double level)
{
    if (!n) return 0;
    const double place = level * (double)(n - 1);
    int64_t k = (int64_t)place, next = k + 1 < n;
    const double t = place - (double)k;
    for (int round = 0; n > FEW; round++) {
        double sample[SAMPLE];
        const int64_t size = n > LONG ? SAMPLE : 32, at = k * size / n, room = 2 + size / 16;
        for (int64_t i = 0; i < size; i++) sample[i] = x[(2 * i + 1) * n / (2 * size)];
        sort(sample, size);
        double low = at < room ? -INFINITY : sample[at - room];
        double high = at + room >= size ? INFINITY : sample[at + room];
        int64_t below, above;
        count_outside(x, n, low, high, &below, &above);
        if (k < below) low = -INFINITY, below = 0;
        if (k + next >= n - above) high = INFINITY, above = 0;
        const int64_t kept = round < 16 ? keep_inside(x, found, n, low, high) : n;
        if (kept + below + above < n) return NAN;
        if (low == high) return low + 0.0;
        if (kept == n) return halved(x, n, k, next, t, low, high);
        x = found, n = kept, k -= below;
    }
    for (int64_t i = 0; i < n; i++) {
        if (x[i] != x[i]) return NAN;
        found[i] = x[i];
    }
    sort(found, n);
    return between(found[k], found[k + next], t);
}

/* The quantile over each target of the values in `parts` vectors, each with its own fibres. */
static void quantiles(double *out, int parts, const double *const *x, const int64_t *const *order,
                      const int64_t *const *members, const double *level, int64_t stride, int64_t targets, int threads)
{
    (void)threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (targets > 1)
    for (int64_t b = 0; b < targets; b++) {
        int64_t n = 0;
        for (int p = 0; p < parts; p++) n += members[p][b + 1] - members[p][b];
        double *room = reserve(2 * n), *end = room;
        const double *values = room;
        for (int p = 0; p < parts; p++)
            if (parts == 1 && !order[p]) values = x[p] + members[p][b];
            else
                for (int64_t k = members[p][b]; k < members[p][b + 1]; k++) *end++ = x[p][order[p] ? order[p][k] : k];
        out[b] = quantile(values, room + n, n, level[b * stride]);
        __builtin_free(room);
    }
}
