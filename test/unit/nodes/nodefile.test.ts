import { describe, expect, test } from 'vitest';
import { decodeNodeFile } from '../../../src/nodes/nodefile.ts';

const decode = (text: string): readonly string[] =>
  decodeNodeFile(Buffer.from(text, 'latin1'), '/var/spool/pbs/aux/1').map(
    ({ name, slots }) => `${name}:${slots}`,
  );

describe('decodeNodeFile', () => {
  test.each([
    ['n1\nn1\nn8\nn8\nn9\nn9\n', ['n1:2', 'n8:2', 'n9:2']],
    ['n1\nn2\nn1\nn2\n', ['n1:2', 'n2:2']],
    ['n1\r\nn2\r\n', ['n1:1', 'n2:1']],
    ['n1\nn2', ['n1:1', 'n2:1']],
    ['n1\nn2\n\n\n', ['n1:1', 'n2:1']],
    ['N1\nn1\n', ['n1:2']],
    ['n1.ex\nn1\n', ['n1.ex:1', 'n1:1']],
  ])('%j counts lines per node in the order of appearance', (text, expected) => {
    expect(decode(text)).toEqual(expected);
  });

  test.each([
    ['', 1, 'the file names no node'],
    ['\n\n', 1, 'the file names no node'],
    ['n1\n\nn2\n', 2, '"" is not a node name'],
    ['n1 \n', 1, '"n1 " is not a node name'],
    ['n[1-2]\n', 1, '"n[1-2]" is not a node name'],
    ['n1\rn2\n', 1, '"n1\\rn2" is not a node name'],
    ['n1\n\xff\x1b[2J\n', 2, '"\\xff\\x1b[2J" is not a node name'],
  ])('%j is refused with its line', (text, line, reason) => {
    expect(() => decode(text)).toThrow(
      expect.objectContaining({
        code: 'node-list',
        message: `/var/spool/pbs/aux/1:${line}: ${reason}`,
      }),
    );
  });
});
