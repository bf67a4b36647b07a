/**
 * Two clients of one storage in one process, which mounts of both make possible: one links the next epoch as a taker
 * does, the other looks for it as an owner does. Arguments: the directory at the owner's mount, at the taker's, rounds.
 * Writes as JSON how often the owner missed the name before the taker had settled it, and after.
 */
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { logFiles } from '../../../src/os/log-files.ts';
import { EpochDirectory } from '../../../src/wal/epoch-directory.ts';
import { settleNames } from '../../../src/wal/settle.ts';
import type { StoragePort } from '../../../src/wal/storage.ts';

const [owned = '', taken = '', rounds = '0'] = process.argv.slice(2);
const facts = { type: 'nfs', source: 'a test', path: owned };
const seen = async () => facts;
const storage: StoragePort = { look: seen, admit: seen, probe: seen };
const owner = new EpochDirectory(logFiles, { directory: owned, cluster: 'lab', instance: 'look' }, storage);

const make = async (path: string): Promise<void> => {
  await (await logFiles.open(path, 'create')).close();
};

await make(join(taken, 'leases.wal.1'));
let before = 0;
let after = 0;
for (let epoch = 1; epoch <= Number(rounds); epoch++) {
  const prepared = join(taken, 'leases.wal.new');
  await make(prepared);
  if (await owner.hasSuccessor(epoch)) throw new Error('a successor shows that is not there');
  await logFiles.link(prepared, join(taken, `leases.wal.${epoch + 1}`));
  if (!(await owner.hasSuccessor(epoch))) before += 1;
  await settleNames({ files: logFiles, wait: (milliseconds) => sleep(milliseconds) }, taken, prepared);
  if (!(await owner.hasSuccessor(epoch))) after += 1;
}
process.stdout.write(JSON.stringify({ before, after }));
