import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { countKeys, describeStatus, findSysvObjects, processHasId } from '../../../src/sandbox/traces.ts';

const status = (uid: string, gid: string, groups: string): string =>
  `Name:\tsleep\nUmask:\t0022\nState:\tS (sleeping)\nUid:\t${uid}\nGid:\t${gid}\nFDSize:\t64\nGroups:\t${groups} \n`;

describe('the look at a process', () => {
  test('finds the id as any of the four uids, four gids and the groups', () => {
    expect(processHasId(status('0\t0\t0\t0', '0\t0\t0\t0', '0 1'), 70_001)).toBe(false);
    for (const at of [0, 1, 2, 3]) {
      const ids = [0, 0, 0, 0].with(at, 70_001).join('\t');
      expect(processHasId(status(ids, '0\t0\t0\t0', ''), 70_001)).toBe(true);
      expect(processHasId(status('0\t0\t0\t0', ids, ''), 70_001)).toBe(true);
    }
    expect(processHasId(status('0\t0\t0\t0', '0\t0\t0\t0', '4 70001'), 70_001)).toBe(true);
  });

  test('compares whole numbers', () => {
    const other = '700010\t170001\t7000\t1';
    expect(processHasId(status(other, other, '70 001'), 70_001)).toBe(false);
  });

  test('says nothing of a status that is cut', () => {
    expect(processHasId('', 1)).toBeUndefined();
    expect(processHasId('Uid:\t0\t0\t0\t0\nGid:\t0\t0', 1)).toBeUndefined();
  });

  test('reads the status of this very process', () => {
    const own = readFileSync('/proc/self/status', 'latin1');
    expect(processHasId(own, process.getuid?.() ?? -1)).toBe(true);
    expect(describeStatus(own).state).toMatch(/^[RS]$/);
  });

  test('is not misled by a name that looks like a line', () => {
    // The kernel escapes a newline in a name; a tab stays.
    const odd = status('0\t0\t0\t0', '0\t0\t0\t0', '').replace('sleep', 'Uid:\t70001\t70001\t70001\t70001');
    expect(processHasId(odd, 70_001)).toBe(false);
  });
});

describe('the look at System V objects', () => {
  const shm =
    '       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n' +
    '         0          5  1600                  4096   100   101      0  1000  1000 70001  1000 1700000000          0 1700000000                  4096                     0\n' +
    '    -12345          6   600                  4096   100   101      0  1000  1000  1000  1000          0          0 1700000000                  4096                     0\n';
  const msg =
    '       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n' +
    ' 305419896          0   644           0          0     0     0 70001 70001 70001 70001          0          0 1700000000\n';

  test('finds what the id owns or has made', () => {
    expect(findSysvObjects(shm, 70_001)).toEqual([{ key: '0', id: '5' }]);
    expect(findSysvObjects(msg, 70_001)).toEqual([{ key: '305419896', id: '0' }]);
    expect(findSysvObjects(shm, 70_002)).toEqual([]);
  });

  test('says nothing of a table it does not know, or that is cut', () => {
    expect(findSysvObjects('', 1)).toBeUndefined();
    expect(findSysvObjects(shm.replace('cuid', 'owner'), 1)).toBeUndefined();
    expect(findSysvObjects(shm.slice(0, shm.length - 100), 1)).toBeUndefined();
  });

  test('reads the tables of this kernel', () => {
    for (const kind of ['shm', 'sem', 'msg']) {
      expect(findSysvObjects(readFileSync(`/proc/sysvipc/${kind}`, 'latin1'), 70_001)).toEqual([]);
    }
  });
});

describe('the look at the keys of the kernel', () => {
  const table = '    0:    15 14/14 9/1000000 70/25000000\n70001:     2 3/2 3/200 54/20000\n';

  test('counts those of one uid', () => {
    expect(countKeys(table, 70_001)).toBe(3);
    expect(countKeys(table, 7000)).toBe(0);
    expect(countKeys('', 70_001)).toBe(0);
  });

  test('says nothing of a table that is another', () => {
    expect(countKeys(`${table}70002: much\n`, 70_001)).toBeUndefined();
  });

  test('reads the table of this very kernel', () => {
    expect(countKeys(readFileSync('/proc/key-users', 'latin1'), 0)).toBeGreaterThan(0);
  });
});
