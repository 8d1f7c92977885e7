/* Sums and maxima over fibres. Their order is fixed, and does not depend on the number of threads. */


/* Tokens are summed in LANES lanes: lane k sums the tokens k, k + LANES, k + 2 LANES, ... of a chunk. Then each half of
   the lanes is added to the other half. So a sum does not depend on the vectors of a processor or compiler. */
#define HALVE(n, JOIN) \
    if (lanes >= 2 * n) _Pragma("omp simd") for (int k = 0; k < n; k++) x[k] = JOIN(x[k], x[k + n]);
#define LANES_PUSH(NAME, KIND, JOIN)                                                                               \
    MATH KIND NAME(KIND *x, int lanes)                                                                             \
    {                                                                                                              \
        HALVE(16, JOIN) HALVE(8, JOIN) HALVE(4, JOIN) HALVE(2, JOIN) HALVE(1, JOIN)                                \
        return x[0];                                                                                               \
    }
#define PLUS(a, b) ((a) + (b))
LANES_PUSH(sum_double, double, PLUS)
LANES_PUSH(sum_real, real, PLUS)
LANES_PUSH(max_double, ordered_f64, MORE)
LANES_PUSH(max_real, ordered_real, MORE)

/* The same for short segments, one after another, of at most `longest` tokens. Their other lanes would add 0. */
#define ROWS_PUSH(NAME, OF, KIND, LANE, NONE, IN, OUT)                                                             \
    MATH void NAME##_of(double *to, const KIND *x, const int64_t *offsets, int64_t rows, int lanes)                \
    {                                                                                                              \
        for (int64_t r = 0; r < rows; r++) {                                                                       \
            const int64_t at = offsets[r] - offsets[0], n = offsets[r + 1] - offsets[r];                           \
            LANE part[LANES];                                                                                      \
            _Pragma("omp simd") for (int k = 0; k < lanes; k++) part[k] = k < n ? IN(x[at + k]) : NONE;            \
            to[r] = OUT(OF(part, lanes));                                                                          \
        }                                                                                                          \
    }                                                                                                              \
    static inline void NAME(double *to, const KIND *x, const int64_t *offsets, int64_t rows, int64_t longest)      \
    {                                                                                                              \
        if (longest == 1 && offsets[rows] - offsets[0] == rows)                                                    \
            _Pragma("omp simd") for (int64_t r = 0; r < rows; r++) to[r] = OUT(IN(x[r]));                          \
        else if (longest <= 2) NAME##_of(to, x, offsets, rows, 2);                                                 \
        else if (longest <= 4) NAME##_of(to, x, offsets, rows, 4);                                                 \
        else if (longest <= 8) NAME##_of(to, x, offsets, rows, 8);                                                 \
        else NAME##_of(to, x, offsets, rows, LANES);                                                               \
    }
#define FROM_0(x) (0 + (x)) /* -0 becomes 0, as in a sum that begins with 0 */
#define SAME(x) (x)
ROWS_PUSH(sum_rows_double, sum_double, double, double, 0, SAME, FROM_0)
ROWS_PUSH(sum_rows_real, sum_real, real, real, 0, SAME, FROM_0)
ROWS_PUSH(max_rows_double, max_double, double, ordered_f64, order_f64(-INFINITY), order_f64, unorder_f64)
ROWS_PUSH(max_rows_real, max_real, real, ordered_real, order_real(-INFINITY), order_real, unorder_real)

static double fibre_sum(const double *x, const int64_t *order, int64_t from, int64_t to)
{
    double total = 0;
    if (order)
        for (int64_t k = from; k < to; k++) total += x[order[k]];
    else
        for (int64_t k = from; k < to; k++) total += x[k];
    return total;
}

static double fibre_max(const double *x, const int64_t *order, int64_t from, int64_t to)
{
    double most = -INFINITY;
    for (int64_t k = from; k < to; k++) {
        const double value = x[order ? order[k] : k];
        most = value > most ? value : most;
    }
    return most;
}

#define FIBRE_PUSH(NAME, OF, START, JOIN)                                                                          \
    static void NAME(double *out, const double *x, const int64_t *order, const int64_t *members, int64_t targets,  \
                     int threads)                                                                                  \
    {                                                                                                              \
        (void)threads;                                                                                             \
        _Pragma("omp parallel for schedule(dynamic, 64) num_threads(threads) if (members[targets] > LONG)")        \
        for (int64_t b = 0; b < targets; b++)                                                                      \
            if (members[b + 1] - members[b] <= LONG) out[b] = OF(x, order, members[b], members[b + 1]);            \
        for (int64_t b = 0; b < targets; b++) {                                                                    \
            if (members[b + 1] - members[b] <= LONG) continue;                                                     \
            double total = START;                                                                                  \
            for (int64_t from = members[b]; from < members[b + 1]; from += 64 * LONG) {                            \
                double part[64];                                                                                   \
                _Pragma("omp parallel for schedule(dynamic, 1) num_threads(threads)")                              \
                for (int64_t k = 0; k < 64; k++) {                                                                 \
                    const int64_t at = from + k * LONG, end = members[b + 1];                                      \
                    part[k] = OF(x, order, at < end ? at : end, at + LONG < end ? at + LONG : end);                \
                }                                                                                                  \
                for (int64_t k = 0; k < 64; k++) total = JOIN(total, part[k]);                                     \
            }                                                                                                      \
            out[b] = total;                                                                                        \
        }                                                                                                          \
    }
FIBRE_PUSH(push_sum, fibre_sum, 0, PLUS)
FIBRE_PUSH(push_max, fibre_max, -INFINITY, MORE)
