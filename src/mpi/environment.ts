import type { Settings } from '../config/settings.ts';

/** Where the launch agent's socket is inside every sandbox. */
export const AGENT_SOCKET = '/run/xce/agent.sock';

/**
 * What every step of a job finds in its environment so that mpirun and mpiexec, also inside a batch script,
 * start their daemons through the agent and never through ssh. NAME=value pairs; `agentPath` is the agent
 * program on this node.
 *
 * Tree spawn is off: a daemon that starts further daemons needs the agent on its own node, and a deep one that
 * dies makes PRRTE hang (openpmix/prrte#2637).
 */
export const mpiEnvironment = (mpi: Settings['mpi'], agentPath: string): readonly string[] => {
  const interfaces = mpi.interfaces.join(',');
  return [
    `PRTE_MCA_plm_ssh_agent=${agentPath}`,
    'PRTE_MCA_plm_ssh_no_tree_spawn=1',
    'PRTE_MCA_prte_tmpdir_base=/tmp',
    `OMPI_MCA_plm_rsh_agent=${agentPath}`,
    'OMPI_MCA_plm_rsh_no_tree_spawn=1',
    `HYDRA_LAUNCHER_EXEC=${agentPath}`,
    ...(interfaces === ''
      ? []
      : [
          `PRTE_MCA_prte_if_include=${interfaces}`,
          `PMIX_MCA_ptl_base_if_include=${interfaces}`,
          `OMPI_MCA_btl_tcp_if_include=${interfaces}`,
        ]),
  ];
};
