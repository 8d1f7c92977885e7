/* Products with a matrix [rows, columns], and with its transpose. */

static void mix(double *out, const double *matrix, const double *x, int64_t rows, int64_t columns, int threads)
{
    (void)threads;
    _Pragma("omp parallel for num_threads(threads) if (rows * columns > LONG)")
    for (int64_t b = 0; b < rows; b++) {
        double total = 0;
        for (int64_t a = 0; a < columns; a++) total += matrix[b * columns + a] * x[a];
        out[b] = total;
    }
}

static void mix_transposed(double *out, const double *matrix, const double *x, int64_t rows, int64_t columns,
                           int threads)
{
    (void)threads;
    _Pragma("omp parallel for num_threads(threads) if (rows * columns > LONG)")
    for (int64_t a = 0; a < columns; a++) {
        double total = 0;
        for (int64_t b = 0; b < rows; b++) total += matrix[b * columns + a] * x[b];
        out[a] = total;
    }
}
