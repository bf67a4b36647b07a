/* Rank 0 sends large messages to rank 1 for as many seconds as the argument says, which checks the last byte. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (4 << 20)

int main(int argc, char **argv)
{
    int rank, more = 1, wrong = 0;
    double end;
    char *buffer = calloc(1, BYTES);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        printf("up\n");
    fflush(stdout);
    end = MPI_Wtime() + (argc > 1 ? atof(argv[1]) : 1);
    for (char value = 1; more; value++) {
        if (rank == 0) {
            buffer[BYTES - 1] = value;
            more = MPI_Wtime() < end;
            MPI_Send(buffer, BYTES, MPI_CHAR, 1, more, MPI_COMM_WORLD);
        } else {
            MPI_Status status;
            MPI_Recv(buffer, BYTES, MPI_CHAR, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            more = status.MPI_TAG;
            wrong += buffer[BYTES - 1] != value;
        }
    }
    if (rank == 1)
        printf("%s\n", wrong == 0 ? "all right" : "wrong");
    MPI_Finalize();
    return wrong != 0;
}
