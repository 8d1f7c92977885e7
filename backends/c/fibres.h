/* Sums and maxima over fibres. Their order is fixed, and does not depend on the number of threads. */

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
#define PLUS(a, b) ((a) + (b))
FIBRE_PUSH(push_sum, fibre_sum, 0, PLUS)
FIBRE_PUSH(push_max, fibre_max, -INFINITY, MORE)
