/** An owner of a guest that only waits to be killed; it tells where its guest is. */
import { identify } from '../support/cluster/process.ts';
import { NfsLab } from '../support/storage/nfs.ts';

const lab = await NfsLab.start();
process.stdin.resume(); // keeps the process; nothing comes
process.stdout.write(`${JSON.stringify({ directory: lab.directory, guest: identify(lab.guest.hostPid) })}\n`);
