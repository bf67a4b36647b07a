import { constants } from 'node:os';
import { describe, expect, test } from 'vitest';
import { describeResult, parseUnitRecord } from '../../../src/sandbox/step-result.ts';

const ID = '74be0e5129b649729637a77d3dd907a1';
const parse = (text: string, stopped = false) => parseUnitRecord(Buffer.from(text), stopped);

describe('the record of a unit', () => {
  test('gives exit status, signal and core dump', () => {
    expect(parse(`${ID} success exited 0\n`)).toEqual({
      invocationId: ID,
      result: { result: 'success', code: 'exited', status: 0, stopped: false },
    });
    expect(parse(`${ID} exit-code exited 255\n`)?.result.status).toBe(255);
    expect(parse(`${ID} signal killed SEGV\n`)?.result).toEqual({
      result: 'signal',
      code: 'killed',
      status: 11,
      stopped: false,
    });
    expect(parse(`${ID} core-dump dumped ABRT\n`)?.result.code).toBe('dumped');
  });

  test('keeps a stop apart from a success', () => {
    expect(parse(`${ID} success killed TERM\n`, true)?.result).toEqual({
      result: 'success',
      code: 'killed',
      status: 15,
      stopped: true,
    });
    expect(parse(`${ID} success exited 0\n`, true)?.result.stopped).toBe(true);
  });

  test('knows every signal by the number of this machine', () => {
    for (const [name, number] of Object.entries(constants.signals)) {
      if (number > 31) continue;
      expect([name, parse(`${ID} signal killed ${name.slice(3)}\n`)?.result.status]).toEqual([name, number]);
    }
    expect(parse(`${ID} signal killed RTMIN+3\n`)?.result.status).toBe(37);
  });

  test('says none where no process ran', () => {
    expect(parse(`${ID} resources  \n`)?.result).toEqual({
      result: 'resources',
      code: 'none',
      status: 0,
      stopped: false,
    });
  });

  test('is nothing when it is torn, longer, or holds what systemd never writes', () => {
    for (const text of [
      '',
      `${ID} success exited 0`,
      `${ID} success exited 0\n\n`,
      `${ID} success exited 256\n`,
      `${ID} success exited TERM\n`,
      `${ID} signal killed 15\n`,
      `${ID} signal killed NOSUCH\n`,
      `${ID} success trapped 0\n`,
      `${ID.slice(1)} success exited 0\n`,
      `${ID} success exited\n`,
    ]) {
      expect(parse(text), JSON.stringify(text)).toBeUndefined();
    }
  });

  test('names the failures of systemd before the command', () => {
    expect(describeResult({ result: 'exit-code', code: 'exited', status: 226, stopped: false })).toBe(
      'exit status 226 (systemd: NAMESPACE)',
    );
    expect(describeResult({ result: 'signal', code: 'killed', status: 9, stopped: false })).toBe(
      'killed by signal 9',
    );
  });
});
