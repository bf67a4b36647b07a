/**
 * What the launchers, daemons and ranks of MPI find in their environment.
 *
 * A program of another MPI library than the launcher's finds nobody to tell it of the other ranks, and runs as a world
 * of its own, rank 0 of 1; all of them end well. So the ranks find a setting with which such a library cannot start,
 * and at which the launcher's own library never looks.
 */
import type { Settings } from '../config/settings.ts';

/** Where the launch agent's socket is inside every sandbox. */
export const AGENT_SOCKET = '/run/xce/agent.sock';

/** Keeps any version of Open MPI from starting; it shows the name of the component that it does not find. */
export const NO_OPEN_MPI = ['OMPI_MCA_pml', 'not_started_by_open_mpi'] as const;

/** The descriptor on which MPICH would talk to its launcher: no process can have so many open. */
export const NO_MPICH = `PMI_FD=${2 ** 31 - 1}`;

/**
 * What every step of a job finds in its environment so that mpirun and mpiexec, also inside a batch script,
 * start their daemons through the agent and never through ssh. NAME=value pairs; `agentPath` is the agent
 * program on this node, `ownInterface` the first of its interfaces that `[mpi] interfaces` means. Hydra takes one by
 * name; without, its daemons have to find the head by its host name.
 *
 * Tree spawn is off: a daemon that starts further daemons needs the agent on its own node, and a deep one that
 * dies makes PRRTE hang (openpmix/prrte#2637).
 */
export const mpiEnvironment = (
  mpi: Settings['mpi'],
  agentPath: string,
  ownInterface: string | undefined,
): readonly string[] => {
  const interfaces = mpi.interfaces.join(',');
  return [
    `PRTE_MCA_plm_ssh_agent=${agentPath}`,
    'PRTE_MCA_plm_ssh_no_tree_spawn=1',
    'PRTE_MCA_prte_tmpdir_base=/tmp',
    `OMPI_MCA_plm_rsh_agent=${agentPath}`,
    'OMPI_MCA_plm_rsh_no_tree_spawn=1',
    // Else orted goes into the background, and its unit has ended.
    'OMPI_MCA_orte_leave_session_attached=1',
    `HYDRA_LAUNCHER_EXEC=${agentPath}`,
    ...(interfaces === ''
      ? []
      : [
          `PRTE_MCA_prte_if_include=${interfaces}`,
          `PMIX_MCA_ptl_base_if_include=${interfaces}`,
          `OMPI_MCA_btl_tcp_if_include=${interfaces}`,
        ]),
    ...(ownInterface === undefined ? [] : [`HYDRA_IFACE=${ownInterface}`]),
  ];
};

/**
 * What the ranks of a daemon find beside that. Those on the node of a launcher that a script calls have no daemon of
 * ours; OMPI_MCA_mca_base_env_list could tell them, but with it mpirun of Open MPI 4 refuses every -x.
 */
export const daemonEnvironment = (program: string): readonly string[] =>
  program.endsWith('hydra_pmi_proxy') ? [NO_OPEN_MPI.join('=')] : [NO_MPICH];
