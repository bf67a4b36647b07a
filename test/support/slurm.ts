/**
 * Slurm on a site of nodes with the layer 'slurm': slurmctld on ctl, slurmd on the workers, and the hooks of the
 * package in slurm.conf, as xce-sandbox-hooks(7) says.
 */
import { randomBytes } from 'node:crypto';
import type { Node } from './cluster/node.ts';
import type { Site } from './site.ts';

const CONF = '/etc/slurm/slurm.conf';
/** The unit of Debian has a user of its own, whom slurmctld would run its hooks as. */
const AS_ROOT = '[Service]\nUser=root\nGroup=root\n';
const SETTLE_MS_MAX = 60_000;

const configuration = (hooks: string, workers: readonly string[]): string => `ClusterName=demo
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
StateSaveLocation=/var/lib/slurmctld
SlurmdSpoolDir=/var/lib/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ReturnToService=1
JobRequeue=1
KillWait=2
MinJobAge=300
PrologSlurmctld=${hooks}/slurm-prolog
EpilogSlurmctld=${hooks}/slurm-epilog
${workers.map((name) => `NodeName=${name} CPUs=1 State=UNKNOWN`).join('\n')}
PartitionName=main Nodes=${workers.join(',')} Default=YES MaxTime=60 DefaultTime=10
`;

export class Slurm {
  readonly #site: Site;

  private constructor(site: Site) {
    this.#site = site;
  }

  /** Resolves once every node is idle. */
  static async setUp(site: Site): Promise<Slurm> {
    const slurm = new Slurm(site);
    const { controller, workers } = site;
    const root = (await controller.must(['npm', 'root', '-g'])).trim();
    const text = configuration(
      `${root}/xce-sandbox/share/hooks`,
      workers.map(({ name }) => name),
    );
    const key = randomBytes(128);
    await Promise.all([controller, ...workers].map((node) => slurm.#prepare(node, text, key)));
    await controller.must(['install', '-d', '-m', '0700', '/var/lib/slurmctld']);
    await controller.must(['install', '-d', '-m', '0755', '/etc/systemd/system/slurmctld.service.d']);
    await controller.writeFile('/etc/systemd/system/slurmctld.service.d/root.conf', AS_ROOT);
    await controller.must(['systemctl', 'daemon-reload']);
    await controller.must(['systemctl', 'start', 'slurmctld']);
    await Promise.all(workers.map((node) => node.must(['systemctl', 'start', 'slurmd'])));
    await slurm.until('idle nodes', async () => {
      const states = await controller.exec(['sinfo', '-h', '-N', '-o', '%t']);
      const found = states.stdout.toString('utf8').split('\n').filter(Boolean);
      return found.length === workers.length && found.every((state) => state === 'idle');
    });
    return slurm;
  }

  async #prepare(node: Node, configurationText: string, key: Buffer): Promise<void> {
    await node.writeFile('/etc/munge/munge.key', key, { mode: 0o400 });
    await node.must(['chown', '-R', 'munge:munge', '/etc/munge']);
    await node.must(['install', '-d', '-m', '0755', '/etc/slurm', '/var/lib/slurmd']);
    await node.writeFile(CONF, configurationText, { mode: 0o644 });
    await node.writeFile('/etc/slurm/cgroup.conf', 'CgroupPlugin=disabled\n', { mode: 0o644 });
    await node.must(['systemctl', 'start', 'munge']);
  }

  /** Runs a command of Slurm on ctl as root. */
  async must(...argv: readonly string[]): Promise<string> {
    return (await this.#site.controller.must(argv)).trim();
  }

  /** Submits a script as the site's user; returns the job id. */
  async submit(nodes: number, script: string): Promise<string> {
    const wrap = [
      'sbatch',
      '--parsable',
      '--chdir=/tmp',
      '--output=/dev/null',
      `--nodes=${nodes}`,
      `--wrap=${script}`,
    ];
    return await this.must('runuser', '-u', 'alice', '--', ...wrap);
  }

  /** The state of a job, such as RUNNING. */
  async state(job: string): Promise<string> {
    return /JobState=(\S+)/.exec(await this.must('scontrol', 'show', 'job', job))?.[1] ?? '';
  }

  async untilState(job: string, ...wanted: readonly string[]): Promise<void> {
    await this.until(`job ${job} ${wanted.join(' or ')}`, async () => wanted.includes(await this.state(job)));
  }

  /** State and reason of a node. */
  async node(name: string): Promise<{ readonly state: string; readonly reason: string }> {
    const text = await this.must('scontrol', 'show', 'node', name);
    return { state: /State=(\S+)/.exec(text)?.[1] ?? '', reason: /Reason=(.*)/.exec(text)?.[1] ?? '' };
  }

  /** Slurm announces nothing to a program of root; so it is asked again and again. */
  async until(what: string, isSo: () => Promise<boolean>): Promise<void> {
    const deadline = performance.now() + SETTLE_MS_MAX;
    while (!(await isSo())) {
      if (performance.now() > deadline) throw new Error(`${what}: not within ${SETTLE_MS_MAX} ms`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}
