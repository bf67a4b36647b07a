import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { readMounts } from '../support/cluster/host.ts';
import { isAlive, type ProcessId } from '../support/cluster/process.ts';
import { cgroupsOf, settle } from '../support/cluster/scope.ts';

type Place = { readonly directory: string; readonly guest: ProcessId };

const startOwner = async (): Promise<Place & { readonly owner: ChildProcess }> => {
  const program = fileURLToPath(new URL('guest-owner.ts', import.meta.url));
  const owner = spawn(process.execPath, ['--import', 'tsx', program], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [line] = (await once(owner.stdout, 'data')) as [Buffer];
  return { owner, ...(JSON.parse(line.toString()) as Place) };
};

const leftovers = ({ directory, guest }: Place, cgroups: readonly string[]): readonly string[] => [
  ...(isAlive(guest) ? [`process ${guest.pid}`] : []),
  ...[directory, ...cgroups].filter((path) => existsSync(path)),
  ...readMounts().flatMap(({ point }) => (point.startsWith(`${directory}/`) ? [point] : [])),
];

test('nothing of a guest is left when its owner is killed', async () => {
  const { owner, ...place } = await startOwner();
  const cgroups = cgroupsOf(place.directory);
  expect(leftovers(place, cgroups).length).toBeGreaterThan(4);
  owner.kill('SIGKILL');
  await once(owner, 'exit');
  await settle(30_000);
  expect(leftovers(place, cgroups)).toEqual([]);
});
