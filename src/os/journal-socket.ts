/** The journal of the host, for entries that have fields of their own. */
import { fstatSync } from 'node:fs';
import { sendDatagram } from './datagram.ts';

const JOURNAL_SOCKET = '/run/systemd/journal/socket';
const STDERR = 2;

/** Whether what this process writes to stderr goes to the journal (JOURNAL_STREAM of systemd.exec(5)). */
export const isStderrJournal = (environment: Readonly<Record<string, string | undefined>>): boolean => {
  const { dev, ino } = fstatSync(STDERR);
  return environment['JOURNAL_STREAM'] === `${dev}:${ino}`;
};

/** Hands one entry of the native protocol to the journal. Throws XceError 'os' when it does not take it. */
export const sendToJournal = (entry: Uint8Array): void => sendDatagram(JOURNAL_SOCKET, entry);
