/* The last rank ends in the way that the first argument names, after MPI_Init; the others wait for it. */
#include <mpi.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && rank == size - 1) {
        if (strcmp(argv[1], "abort") == 0)
            MPI_Abort(MPI_COMM_WORLD, 5);
        if (strcmp(argv[1], "kill") == 0)
            kill(getpid(), SIGKILL);
        if (strcmp(argv[1], "segv") == 0)
            raise(SIGSEGV);
        if (strcmp(argv[1], "exit") == 0)
            _exit(42);
        if (strcmp(argv[1], "leave") == 0)
            _exit(0);
        if (strcmp(argv[1], "wait") == 0)
            pause();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
