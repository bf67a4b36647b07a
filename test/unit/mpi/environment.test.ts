import { expect, test } from 'vitest';
import { daemonEnvironment, mpiEnvironment } from '../../../src/mpi/environment.ts';

const AGENT = '/opt/xce/bin/xce-sandbox-agent';

test('every launcher is led to the agent, and none spawns as a tree', () => {
  expect(mpiEnvironment({ interfaces: [], agentTimeoutMs: 1 }, AGENT, undefined)).toEqual([
    `PRTE_MCA_plm_ssh_agent=${AGENT}`,
    'PRTE_MCA_plm_ssh_no_tree_spawn=1',
    'PRTE_MCA_prte_tmpdir_base=/tmp',
    `OMPI_MCA_plm_rsh_agent=${AGENT}`,
    'OMPI_MCA_plm_rsh_no_tree_spawn=1',
    'OMPI_MCA_orte_leave_session_attached=1',
    `HYDRA_LAUNCHER_EXEC=${AGENT}`,
  ]);
});

test('configured interfaces bind daemons, their clients and the messages of ranks', () => {
  const variables = mpiEnvironment({ interfaces: ['10.0.0.0/8', 'ib0'], agentTimeoutMs: 1 }, AGENT, 'ib0');
  expect(variables.slice(-4)).toEqual([
    'PRTE_MCA_prte_if_include=10.0.0.0/8,ib0',
    'PMIX_MCA_ptl_base_if_include=10.0.0.0/8,ib0',
    'OMPI_MCA_btl_tcp_if_include=10.0.0.0/8,ib0',
    'HYDRA_IFACE=ib0',
  ]);
});

test('the ranks of a daemon cannot be programs of the other library', () => {
  expect(daemonEnvironment('/usr/bin/hydra_pmi_proxy')).toEqual(['OMPI_MCA_pml=not_started_by_open_mpi']);
  expect(daemonEnvironment('/usr/bin/prted')).toEqual(['PMI_FD=2147483647']);
});
