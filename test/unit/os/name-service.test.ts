import { chmodSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createNameService, lookUpNumber } from '../../../src/os/name-service.ts';

/** No table of systemd's gives this number to anybody. */
const FREE_UID = 65_525;

let directory = '';
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'xce-getent-'));
});
afterAll(() => {
  rmSync(directory, { recursive: true });
});

let programs = 0;
/** A program in place of getent: a shell script with the database in $1, the number in $2, the services in $of. */
const fake = (script: string): string => {
  programs += 1;
  const path = join(directory, `getent-${programs}`);
  writeFileSync(path, `#!/bin/sh\n[ "$1" = -s ] || exit 64\nof=$2; shift 2\n${script}\n`);
  chmodSync(path, 0o755);
  return path;
};

describe('lookUpNumber with the real getent', () => {
  test('root is present in both databases', async () => {
    const options = { timeoutMs: 5000, services: ['files'] };
    expect(await lookUpNumber('passwd', 0, options)).toEqual({
      answer: 'present',
      reason: 'passwd knows 0 as "root"',
    });
    expect(await lookUpNumber('group', 0, options)).toEqual({
      answer: 'present',
      reason: 'group knows 0 as "root"',
    });
  });

  test('a number that nobody has is absent from both', async () => {
    const options = { timeoutMs: 5000, services: ['files'] };
    expect(await lookUpNumber('passwd', FREE_UID, options)).toEqual({ answer: 'absent' });
    expect(await lookUpNumber('group', FREE_UID, options)).toEqual({ answer: 'absent' });
  });
});

describe('lookUpNumber with a getent that misbehaves', () => {
  const say = (text: string): string => `printf '%s' '${text}'`;

  test.each([
    ['exit 3', 'exit 3', 'exit status 3'],
    ['exit 1', 'exit 1', 'exit status 1'],
    ['exit 2 with an answer', `${say('a:x:70001:70001::/:/bin/sh')}; exit 2`, 'exit status 2'],
    ['exit 0 without an answer', 'exit 0', 'answered ""'],
    ['garbage', `${say('<html>')}`, 'answered "<html>"'],
    ['another number', say('a:x:70002:70001::/:/bin/sh'), 'answered "a:x:70002:70001::/:/bin/sh"'],
    [
      'the number in another notation',
      say('a:x:070001:70001::/:/bin/sh'),
      'answered "a:x:070001:70001::/:/bin/sh"',
    ],
    ['a line with a field too few', say('a:x:70001:70001::/'), 'answered "a:x:70001:70001::/"'],
    ['an empty name', say(':x:70001:70001::/:/bin/sh'), 'answered ":x:70001:70001::/:/bin/sh"'],
    ['two lines', `echo a:x:70001:70001::/:/bin/sh; echo b`, 'answered "a:x:70001:70001::/:/bin/sh\\nb\\n"'],
    ['control characters', `printf '\\033[2J'`, 'answered "\\x1b[2J"'],
    ['a signal', 'kill -SEGV $$', 'ended by SIGSEGV'],
    ['output without end', 'exec yes', 'the answer is too long'],
  ])('%s is not an answer', async (_claim, script, why) => {
    expect(
      await lookUpNumber('passwd', 70_001, { program: fake(script), timeoutMs: 5000, services: ['files'] }),
    ).toEqual({
      answer: 'unknown',
      reason: `name service not answering (getent -s 'files' passwd 70001: ${why})`,
    });
  });

  test('a service that sleeps is unknown at the deadline', async () => {
    const started = process.hrtime.bigint();
    expect(
      await lookUpNumber('group', 70_001, {
        program: fake('exec sleep 60'),
        timeoutMs: 200,
        services: ['files'],
      }),
    ).toEqual({
      answer: 'unknown',
      reason: "name service not answering (getent -s 'files' group 70001: no answer within 200 ms)",
    });
    expect(Number(process.hrtime.bigint() - started) / 1e6).toBeLessThan(5000);
  });

  test('a getent that is not there is unknown', async () => {
    expect(
      await lookUpNumber('passwd', 70_001, {
        program: join(directory, 'none'),
        timeoutMs: 5000,
        services: ['files'],
      }),
    ).toEqual({
      answer: 'unknown',
      reason: "name service not answering (getent -s 'files' passwd 70001: cannot run: ENOENT)",
    });
  });
});

describe('a name service with a control uid', () => {
  const CONTROL = 'passwd\\ 1001) echo c:x:1001:1001::/:/bin/sh;;';
  /** Answers by the words `database number`; anything else is not found. */
  const answering = (...cases: readonly string[]): string =>
    fake(`case "$1 $2" in ${cases.join(' ')} *) exit 2;; esac`);
  let nsswitchPath = '';
  beforeAll(() => {
    nsswitchPath = join(directory, 'nsswitch.conf');
    writeFileSync(nsswitchPath, 'passwd: files systemd\ngroup: files\n');
  });
  const ask = (program: string, timeoutMs = 5000): Promise<unknown> =>
    createNameService({ program, timeoutMs, nsswitchPath, controlUid: 1001 }).lookUp(70_001);

  test('absent in both databases and a control that resolves: absent', async () => {
    expect(await ask(answering(CONTROL))).toEqual({ answer: 'absent' });
  });

  test('the real getent, with root as the control', async () => {
    const service = createNameService({ timeoutMs: 5000, nsswitchPath, controlUid: 0 });
    expect(await service.lookUp(FREE_UID)).toEqual({ answer: 'absent' });
    expect(await service.lookUp(1)).toMatchObject({ answer: 'present' });
  });

  test('a service that does not find the control proves nothing', async () => {
    expect(await ask(answering())).toEqual({
      answer: 'unknown',
      reason:
        "name service not answering (getent -s 'files systemd' passwd 1001: it does not find [directory] control_uid)",
    });
  });

  test('a group of the number takes it, although there is no user', async () => {
    expect(await ask(answering(CONTROL, 'group\\ 70001) echo g:x:70001:;;'))).toEqual({
      answer: 'present',
      reason: 'group knows 70001 as "g"',
    });
  });

  test('one database in doubt is doubt', async () => {
    expect(await ask(answering(CONTROL, 'group\\ 70001) exit 3;;'))).toMatchObject({
      answer: 'unknown',
      reason: expect.stringContaining("getent -s 'files' group 70001: exit status 3"),
    });
  });

  test('a service that went away between the control and the answer proves nothing', async () => {
    const seen = join(directory, 'seen');
    const program = fake(
      `case "$1 $2" in passwd\\ 1001) [ -e ${seen} ] && exit 2; echo c:x:1001:1001::/:/bin/sh;; *) : >${seen}; exit 2;; esac`,
    );
    expect(await ask(program)).toMatchObject({
      answer: 'unknown',
      reason: expect.stringContaining('does not find [directory] control_uid'),
    });
  });

  test('past the records of systemd sees who stands behind one of them', async () => {
    const program = fake(
      `case "$1 $2 $of" in
        "passwd 1001 "*) echo alice:x:1001:1001::/:/bin/sh;;
        *systemd*) echo xce-main-1:x:70001:70001::/:/bin/sh;;
        *) exit 2;;
      esac`,
    );
    const service = createNameService({ program, timeoutMs: 5000, nsswitchPath, controlUid: 1001 });
    expect((await service.lookUp(70_001)).answer).toBe('present');
    expect(await service.lookUp(70_001, 'no records')).toEqual({ answer: 'absent' });
    const eve = fake(
      'case "$1 $2" in "passwd 1001") echo alice:x:1001:1001::/:/bin/sh;; passwd*) echo eve:x:70001:1::/:/bin/sh;; *) exit 2;; esac',
    );
    const taken = createNameService({ program: eve, timeoutMs: 5000, nsswitchPath, controlUid: 1001 });
    expect((await taken.lookUp(70_001, 'no records')).answer).toBe('present');
    const only = join(directory, 'nsswitch-only');
    writeFileSync(only, 'passwd: systemd\ngroup: files systemd\n');
    const empty = createNameService({ program, timeoutMs: 5000, nsswitchPath: only, controlUid: 1001 });
    expect((await empty.lookUp(70_001, 'no records')).answer).toBe('unknown');
  });

  test('an earlier "absent" does not answer for a service that fails now', async () => {
    const log = join(directory, 'log');
    const program = fake(
      `echo "$1 $2" >>${log}; [ "$(wc -l <${log})" -gt 4 ] && exit 3; case "$1 $2" in ${CONTROL} *) exit 2;; esac`,
    );
    const service = createNameService({ program, timeoutMs: 5000, nsswitchPath, controlUid: 1001 });
    expect(await service.lookUp(70_001)).toEqual({ answer: 'absent' });
    expect(await service.lookUp(70_001)).toMatchObject({ answer: 'unknown' });
    expect(readFileSync(log, 'latin1').split('\n').length).toBeGreaterThan(4);
  });

  test('the deadline holds for all questions together', async () => {
    const program = fake(
      'case "$1 $2" in passwd\\ 1001) echo c:x:1001:1001::/:/bin/sh;; *) exec sleep 60;; esac',
    );
    const started = process.hrtime.bigint();
    expect(await ask(program, 400)).toMatchObject({ answer: 'unknown' });
    expect(Number(process.hrtime.bigint() - started) / 1e6).toBeLessThan(5000);
  });

  describe('and the services of nsswitch.conf', () => {
    const lookUp = (nsswitch: string, program: string): Promise<unknown> => {
      const path = join(directory, `nsswitch-${programs}`);
      writeFileSync(path, nsswitch);
      return createNameService({ program, timeoutMs: 5000, nsswitchPath: path, controlUid: 1001 }).lookUp(
        70_001,
      );
    };
    /** Knows the control in the services given. */
    const knownIn = (...services: readonly string[]): string =>
      fake(
        `case "$1 $2 $of" in ${services.map((of) => `"passwd 1001 ${of}"`).join('|')}) echo c:x:1001:1001::/:/bin/sh;; *) exit 2;; esac`,
      );

    test('the control must be found in the directory itself: a local account shows nothing about it', async () => {
      const nsswitch = 'passwd: files systemd ldap\ngroup: files\n';
      expect(await lookUp(nsswitch, knownIn('ldap'))).toEqual({ answer: 'absent' });
      expect(await lookUp(nsswitch, knownIn('files systemd ldap', 'files'))).toMatchObject({
        answer: 'unknown',
        reason: expect.stringContaining("getent -s 'ldap' passwd 1001: it does not find"),
      });
    });

    test('each of two directories must find it, also one that only groups name', async () => {
      const nsswitch = 'passwd: files ldap\ngroup: files nis\n';
      expect(await lookUp(nsswitch, knownIn('ldap', 'nis'))).toEqual({ answer: 'absent' });
      expect(await lookUp(nsswitch, knownIn('ldap'))).toMatchObject({
        reason: expect.stringContaining("getent -s 'nis' passwd 1001"),
      });
    });

    test.each([
      ['passwd: files winbind\ngroup: files\n', 'whether "winbind" answers from a cache cannot be told'],
      ['passwd: files\n', 'it names no service for group'],
      ['', 'it names no service for passwd'],
    ])('%j is refused', async (nsswitch, why) => {
      expect(await lookUp(nsswitch, answering(CONTROL))).toEqual({
        answer: 'unknown',
        reason: `name service not answering (nsswitch.conf: ${why})`,
      });
    });

    test('a file that is not there is refused, and a link to one is followed', async () => {
      const at = (path: string): Promise<unknown> =>
        createNameService({
          program: answering(CONTROL),
          timeoutMs: 5000,
          nsswitchPath: path,
          controlUid: 1001,
        }).lookUp(70_001);
      const link = join(directory, 'nsswitch-link');
      symlinkSync(nsswitchPath, link);
      expect(await at(link)).toEqual({ answer: 'absent' });
      expect(await at(join(directory, 'none'))).toMatchObject({
        answer: 'unknown',
        reason: expect.stringContaining('ENOENT'),
      });
    });
  });
});
