import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import { expandHostlist, foldNodes, parseNodeList } from '../../../src/nodes/hostlist.ts';

const expand = (text: string): readonly string[] => parseNodeList(text);

describe('expandHostlist', () => {
  test.each([
    ['n1', ['n1']],
    ['n1,n2', ['n1', 'n2']],
    ['node[01-04,7]', ['node01', 'node02', 'node03', 'node04', 'node7']],
    ['c[09-11],c010', ['c09', 'c10', 'c11', 'c010']],
    ['a001,a2,a01', ['a001', 'a2', 'a01']],
    ['n[1-2]c[08-10]', ['n1c08', 'n1c09', 'n1c10', 'n2c08', 'n2c09', 'n2c10']],
    ['node[098-101]', ['node098', 'node099', 'node100', 'node101']],
    ['c[01-100]', Array.from({ length: 100 }, (_, index) => `c${String(index + 1).padStart(2, '0')}`)],
    ['n[0-2]', ['n0', 'n1', 'n2']],
    ['n[3,1,2]', ['n3', 'n1', 'n2']],
    [
      'n[1-2]-ib.rack[3-4].example',
      ['n1-ib.rack3.example', 'n1-ib.rack4.example', 'n2-ib.rack3.example', 'n2-ib.rack4.example'],
    ],
    ['[1-2]', ['1', '2']],
    ['a[1][2][3][4]', ['a1234']],
    ['NODE[01-02]', ['node01', 'node02']],
  ])('%s keeps order and zeros', (text, names) => {
    expect(expand(text)).toEqual(names);
  });

  test.each([
    ['', 1, 'a name is missing'],
    [' ', 1, '" " cannot stand in a node name'],
    [',', 1, 'a name is missing'],
    ['n1,', 4, 'a name is missing'],
    [',n1', 1, 'a name is missing'],
    ['n1,,n2', 4, 'a name is missing'],
    ['n1, n2', 4, '" " cannot stand in a node name'],
    ['node[01', 5, 'a bracket is not closed'],
    ['node[', 6, 'a bracket is not closed'],
    ['node[01-', 9, 'a bracket is not closed'],
    ['node01]', 7, 'a bracket is closed that was not opened'],
    ['node[]', 5, 'a bracket is empty'],
    ['[]', 1, 'a bracket is empty'],
    ['node[01,]', 9, 'a number is expected, not "]"'],
    ['node[,01]', 6, 'a number is expected, not ","'],
    ['node[01,,02]', 9, 'a number is expected, not ","'],
    ['node[5-1]', 6, 'the range 5-1 runs backwards'],
    ['node[[01]]', 6, 'brackets do not nest'],
    ['node[01[2]]', 8, '"," or "]" is expected, not "["'],
    ['node[01,foo]', 9, 'a number is expected, not "f"'],
    ['node[1-2-3]', 9, '"," or "]" is expected, not "-"'],
    ['node[a-c]', 6, 'a number is expected, not "a"'],
    ['node[ 1]', 6, 'a number is expected, not " "'],
    ['node[0x1]', 7, '"," or "]" is expected, not "x"'],
    ['node[１]', 6, 'a number is expected, not "１"'],
    ['../n1', 3, '"/" cannot stand in a node name'],
    ['n1;reboot', 3, '";" cannot stand in a node name'],
    ['n1\nn2', 3, '"\\n" cannot stand in a node name'],
    ['n1\u001b[1m', 3, '"\\x1b" cannot stand in a node name'],
    ['-n1', 1, '"-n1" is not a node name'],
    ['n1-', 1, '"n1-" is not a node name'],
    ['n1..example', 1, '"n1..example" is not a node name'],
    ['n[1-2].', 1, '"n1." is not a node name'],
    ['*', 1, '"*" cannot stand in a node name'],
    ['n[001-10]', 3, 'the numbers of the range 001-10 are padded to different widths'],
    ['n[1-010]', 3, 'the numbers of the range 1-010 are padded to different widths'],
    ['n1,n2,N1', 7, 'the node n1 is named twice'],
    ['n[1-3],n2', 8, 'the node n2 is named twice'],
    ['n[1,1]', 1, 'the node n1 is named twice'],
    ['n[1][2][3][4][5]', 14, 'a name has more than 4 brackets'],
    ['n[1-123456789012345678901]', 5, 'a number has more than 20 digits'],
  ])('%j is refused at character %i', (text, position, reason) => {
    expect(expandHostlist(text)).toEqual({ fault: { position, reason } });
  });

  test.each([
    ['node[1-16385]', 16_385, 'node16385'],
    ['node[00001-65536]', 65_536, 'node65536'],
    ['r[1-256]n[1-256]', 65_536, 'r256n256'],
  ])('%s expands in full', (text, count, last) => {
    const names = expand(text);
    expect(names).toHaveLength(count);
    expect(names.at(-1)).toBe(last);
  });

  test.each([
    ['node[0-18446744073709551615]', '18446744073709551616'],
    ['node[0-65536]', '65537'],
    ['n[1-9999][1-9999][1-9999][1-9999]', '9996000599960001'],
    ['a[1-40000],b[1-40000]', '80000'],
  ])('%s is counted before it is expanded, and refused with the limit', (text, count) => {
    const started = process.hrtime.bigint();
    const heapBefore = process.memoryUsage().heapUsed;
    expect(expandHostlist(text).fault?.reason).toBe(
      `the list reaches ${count} names here; the limit is 65536`,
    );
    expect(process.memoryUsage().heapUsed - heapBefore).toBeLessThan(32 << 20);
    expect(Number(process.hrtime.bigint() - started) / 1e6).toBeLessThan(1000);
  });

  test('long literal text is refused before a bracket copies it', () => {
    expect(expandHostlist(`${'a'.repeat(254)}[1-65536]`).fault).toEqual({
      position: 1,
      reason: 'a name is longer than 253 characters',
    });
    expect(expandHostlist(`n,${'a'.repeat(200)}[1]${'a'.repeat(60)}`).fault?.position).toBe(3);
  });

  test('a list over the length limit is refused unread', () => {
    expect(expandHostlist('n,'.repeat(40_000)).fault?.reason).toBe(
      'the list is longer than 65536 characters',
    );
  });

  test('parseNodeList throws the code of the table with the position', () => {
    const attempt = (): unknown => parseNodeList('n[1-2');
    expect(attempt).toThrow(XceError);
    expect(attempt).toThrow('"n[1-2" at character 2: a bracket is not closed');
    try {
      attempt();
    } catch (error) {
      expect(error).toMatchObject({ code: 'node-list', exitStatus: 64 });
    }
  });
});

describe('foldNodes', () => {
  test.each([
    ['n1', 'n1'],
    ['n[1-3]', 'n[1-3]'],
    ['n3,n1,n2', 'n[1-3]'],
    ['node[01-04,7]', 'node[01-04,7]'],
    ['c09,c10,c11,c010', 'c[09-11,010]'],
    ['a001,a2,a01', 'a[01,001,2]'],
    ['node098,node099,node100,node101', 'node[098-101]'],
    ['n1c08,n1c09,n2c08,n2c09', 'n[1-2]c[08-09]'],
    ['r1n1,r1n2,r2n1', 'r1n[1-2],r2n1'],
    ['a1,b1,a2', 'a[1-2],b1'],
    ['login,n1', 'login,n1'],
    ['n1.c1.example,n2.c1.example', 'n[1-2].c1.example'],
    ['n0,n00', 'n[00,0]'],
    ['a1b2c3d4e5,a1b2c3d4e6', 'a1b2c3d4e[5-6]'],
    ['n99999999999999999999,n100000000000000000000', 'n99999999999999999999,n100000000000000000000'],
  ])('%s folds to %s', (list, folded) => {
    expect(foldNodes(parseNodeList(list))).toBe(folded);
  });

  test('no name folds to nothing', () => {
    expect(foldNodes([])).toBe('');
  });
});
