/** Hands one tree over as a release does, walks and proof: ROOT UID TO. */

import { machinePorts } from '../../src/normalise/machine-ports.ts';
import { normaliseRoot } from '../../src/normalise/normalise.ts';
import { mountOf } from '../../src/os/mounts.ts';

const [path = '', uid = '', submitter = ''] = process.argv.slice(2);
const id = Number(uid);
const root = { path, storagePath: path, mount: mountOf(path) };
const to = { uid: Number(submitter), gid: Number(submitter) };
const report = await normaliseRoot({ root, uid: id, gid: id, to, mode: 'apply' }, machinePorts);
if (report.status !== 'complete') throw new Error(JSON.stringify(report));
