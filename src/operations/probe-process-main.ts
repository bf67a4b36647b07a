/** The program of probe-process.ts: `probe-process DIRECTORY PROBE`. Ends with its input. */
import { serveLines } from '../os/line-process.ts';
import { logFiles } from '../os/log-files.ts';
import { pause } from '../os/watch.ts';
import { decodeRequest, encodeError } from '../rpc/decode.ts';
import { ProbeHand } from '../wal/probe-hand.ts';
import { ERROR_MARK } from './probe-process.ts';

const [directory = '', probe = ''] = process.argv.slice(2);
const hand = new ProbeHand({ files: logFiles, wait: pause }, directory, probe);

void serveLines(async (line) => {
  try {
    const { actions } = decodeRequest('probe-act', Buffer.from(line));
    return JSON.stringify({ results: await hand.perform(actions) });
  } catch (error) {
    return `${ERROR_MARK}${encodeError(error).toString('utf8')}`;
  }
});
