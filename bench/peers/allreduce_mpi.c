/* MPI_Allreduce (float32 sum, in place) as a resident peer: rank 0 reads lines "BYTES ITERATIONS" and answers each with one line
 * of JSON; the time of an iteration is the slowest rank's. Between lines all ranks sleep, so that the others can be measured. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* A broadcast that does not spin while it waits. */
static void quiet_broadcast(long *values) {
  MPI_Request request;
  int done = 0;
  MPI_Ibcast(values, 2, MPI_LONG, 0, MPI_COMM_WORLD, &request);
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done) usleep(1000);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (;;) {
    long order[2] = {0, 0};
    if (rank == 0 && scanf("%ld %ld", &order[0], &order[1]) != 2) order[0] = 0;
    quiet_broadcast(order);
    if (order[0] == 0) break;
    size_t n = order[0] / 4;
    int iterations = order[1];
    float *x = aligned_alloc(4096, (order[0] + 4095) / 4096 * 4096);
    double *mine = malloc(iterations * sizeof *mine), *slowest = malloc(iterations * sizeof *slowest);
    for (size_t i = 0; i < n; i++) x[i] = (float)(rank + 1);
    MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < n; i++)
      if (x[i] != size * (size + 1) / 2) {
        fprintf(stderr, "wrong sum\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    for (size_t i = 0; i < n; i++) x[i] = 0;
    for (int i = -2; i < iterations; i++) {
      double begin = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      if (i >= 0) mine[i] = MPI_Wtime() - begin;
    }
    MPI_Reduce(mine, slowest, iterations, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      qsort(slowest, iterations, sizeof(double), by_value);
      printf("{\"bytes\": %ld, \"median_us\": %.2f, \"min_us\": %.2f}\n", order[0], slowest[iterations / 2] * 1e6, slowest[0] * 1e6);
      fflush(stdout);
    }
    free(x), free(mine), free(slowest);
  }
  MPI_Finalize();
  return 0;
}
