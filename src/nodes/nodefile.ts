/**
 * The node file of PBS: one node name a line, once per slot, in any order. The names are as the batch system
 * knows them; matching them to configured nodes is for resolveNodes.
 */

import { XceError } from '../base/errors.ts';
import { escapeBytes } from '../base/escape.ts';
import { type NodeName, parseNodeName } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';

export type NodeSlots = { readonly name: NodeName; readonly slots: number };

const refuse = (fileName: string, line: number, reason: string): XceError =>
  new XceError('node-list', `${fileName}:${line}: ${reason}`, {
    at: `${fileName}:${line}`,
    unchanged: 'no node was chosen and nothing was started',
  });

/**
 * Decodes the bytes of a node file (at most LIMITS.nodeFileBytesMax) to its nodes in the order in which they
 * first appear, with the number of lines that name each. LF or CRLF; empty lines at the end are ignored. Throws
 * 'node-list' for an empty file and for any line that is not exactly one node name.
 */
export const decodeNodeFile = (bytes: Buffer, fileName: string): readonly NodeSlots[] => {
  if (bytes.length > LIMITS.nodeFileBytesMax) {
    throw refuse(fileName, 1, `the file is over ${LIMITS.nodeFileBytesMax} bytes`);
  }
  const lines = bytes.toString('latin1').split(/\r?\n/);
  while (lines.at(-1) === '') lines.pop();
  if (lines.length === 0) throw refuse(fileName, 1, 'the file names no node');
  const slots = new Map<NodeName, number>();
  lines.forEach((text, index) => {
    const name = parseNodeName(text);
    if (name === undefined) {
      const shown = escapeBytes(Buffer.from(text.slice(0, LIMITS.nodeNameCharsMax), 'latin1'));
      throw refuse(fileName, index + 1, `"${shown}" is not a node name`);
    }
    slots.set(name, (slots.get(name) ?? 0) + 1);
    if (slots.size > LIMITS.nodesMax) {
      throw refuse(fileName, index + 1, `the file names more than ${LIMITS.nodesMax} nodes`);
    }
  });
  return Array.from(slots, ([name, count]) => ({ name, slots: count }));
};
