/**
 * A controller as a process of its own, on real files: grants uids to names of its own until it has `count` of them,
 * and writes a line for each that was acknowledged. Arguments: its place as JSON, first name, count. Ends with the
 * code of what refused it, or with `done`.
 */
import { randomBytes } from 'node:crypto';
import { writeSync } from 'node:fs';
import { XceError } from '../../src/base/errors.ts';
import { openRealLog, type RealPlace } from './real-log.ts';
import { decideGrant } from './world.ts';

const [place = '', prefix = '', count = '0'] = process.argv.slice(2);
const log = openRealLog(JSON.parse(place) as RealPlace);
const unique = randomBytes(4).toString('hex');
let end = 'done';
for (let i = 0; i < Number(count); i++) {
  const by = `${prefix}-${unique}-${i}`;
  try {
    const { result } = await log.commit((state) => decideGrant(state, by));
    writeSync(1, `${by} ${result}\n`);
  } catch (error) {
    if (!(error instanceof XceError)) throw error;
    end = error.code;
    break;
  }
}
await log.close();
writeSync(1, `${end}\n`);
