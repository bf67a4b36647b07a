/* One line per rank: who and where it is, whether an allreduce over all ranks is right, and how many ranks of
 * its node see what the first of them wrote into shared memory. With an argument, each rank then sleeps that
 * many seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int rank, size, sum, local_rank, local_size, disp, seen, all_seen, length;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Comm node;
    MPI_Win window;
    MPI_Aint bytes;
    int *mine, *first;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local_rank);
    MPI_Comm_size(node, &local_size);
    MPI_Win_allocate_shared(local_rank == 0 ? sizeof(int) : 0, sizeof(int), MPI_INFO_NULL, node, &mine, &window);
    MPI_Win_shared_query(window, 0, &bytes, &disp, &first);
    MPI_Win_fence(0, window);
    if (local_rank == 0)
        *mine = 4711;
    MPI_Win_fence(0, window);
    seen = *first == 4711;
    MPI_Allreduce(&seen, &all_seen, 1, MPI_INT, MPI_SUM, node);
    MPI_Win_free(&window);

    printf("rank %d of %d on %s uid %d sum %s shared %d of %d\n", rank, size, host, (int)getuid(),
           sum == size * (size - 1) / 2 ? "right" : "wrong", all_seen, local_size);
    fflush(stdout);
    if (argc > 1)
        sleep((unsigned)atoi(argv[1]));
    MPI_Finalize();
    return 0;
}
