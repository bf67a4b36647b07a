/** Launches that run while a test does something to them, and what is left on the nodes afterwards. */
import { expect } from 'vitest';
import type { Node, Spawned } from './cluster/node.ts';
import type { Site } from './site.ts';

export type Running = {
  readonly child: Spawned;
  readonly output: { text: string };
  readonly errors: { text: string };
  /** Resolves when the output has that text. */
  readonly shows: (text: string) => Promise<void>;
};

/** Starts a command of the product on the controller. */
export const spawnCommand = async (site: Site, args: readonly string[]): Promise<Running> => {
  const child = await site.controller.spawn(['xce-sandbox', ...args]);
  const output = { text: '' };
  const errors = { text: '' };
  let look = (): void => undefined;
  child.stdout.on('data', (bytes: Buffer) => {
    output.text += bytes.toString();
    look();
  });
  child.stderr.on('data', (bytes: Buffer) => {
    errors.text += bytes.toString();
  });
  const shows = (text: string): Promise<void> =>
    new Promise((resolve, reject) => {
      look = () => {
        if (output.text.includes(text)) resolve();
      };
      look();
      child.ended.then(() => reject(new Error(`ended without '${text}': ${output.text} ${errors.text}`)));
    });
  return { child, output, errors, shows };
};

export const spawnLaunch = (site: Site, args: readonly string[]): Promise<Running> =>
  spawnCommand(site, ['launch', ...args]);

/** Starts a script on nodes of a job, and resolves when it runs on each of them. */
export const launchOn = async (
  site: Site,
  job: string,
  nodes: readonly string[],
  script = 'exec sleep 300',
): Promise<Running> => {
  const running = await spawnLaunch(site, [
    ...['--job', job, '--nodes', nodes.join(','), '--label', '--'],
    ...['sh', '-c', `echo up; ${script}`],
  ]);
  for (const node of nodes) await running.shows(`${node}: up`);
  return running;
};

export const processesOf = async (node: Node, uid: number): Promise<string> =>
  (await node.exec(['ps', '-o', 'args=', '-u', String(uid)])).stdout.toString();

/** Waits on the node until it has no process of the uid. */
export const awaitNoProcess = (node: Node, uid: number, seconds: number): Promise<string> =>
  node.must(
    ['timeout', String(seconds), 'sh', '-c', `while pgrep -u ${uid} >/dev/null; do sleep 0.1; done`],
    {
      timeoutMs: (seconds + 10) * 1000,
    },
  );

export const unitsOf = (node: Node, lease: number): Promise<string> =>
  node.must(['sh', '-c', `systemctl list-units --all --plain --no-legend 'xce-main-${lease}.*'`]);

/** No process, unit, or directory of the lease on any of these nodes. */
export const expectNothing = async (
  nodes: readonly Node[],
  { lease, uid }: { readonly lease: number; readonly uid: number },
): Promise<void> => {
  for (const node of nodes) {
    expect([node.name, await processesOf(node, uid)]).toEqual([node.name, '']);
    expect([node.name, await unitsOf(node, lease)]).toEqual([node.name, '']);
    expect((await node.exec(['test', '-e', `/run/xce-sandbox/main/box/${lease}`])).exitCode).toBe(1);
  }
};

/** The invocation of a lease's anchor, which another sandbox of the same name does not have. */
export const anchorOf = async (node: Node, lease: number): Promise<string> =>
  (
    await node.must(['sh', '-c', `systemctl show -P InvocationID 'xce-main-${lease}.*.anchor.service'`])
  ).trim();

const WORKER = 'xce-sandbox-worker.service';
const SOCKET = 'xce-sandbox-worker-tls.socket';
const NEVER = `/run/systemd/system/${WORKER}.d/never.conf`;

/** SIGKILL for the worker; nothing starts it again. */
export const killWorkerForGood = async (node: Node): Promise<void> => {
  await node.must(['systemctl', 'stop', SOCKET]);
  await node.writeFile(NEVER, '[Service]\nRestart=no\n');
  await node.must(['systemctl', 'daemon-reload']);
  await node.must(['systemctl', 'kill', '--signal=KILL', '--kill-whom=main', WORKER]);
};

export const reviveWorker = async (node: Node): Promise<void> => {
  await node.must(['rm', '-f', NEVER]);
  await node.must(['systemctl', 'daemon-reload']);
  await node.must(['systemctl', 'start', SOCKET, WORKER]);
};
