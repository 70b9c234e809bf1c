// The process that holds llama.cpp's side of `peers.py`, by the npm package node-llama-cpp, which ships llama.cpp built.
//
//     node peer_llama.mjs FILE.gguf CONTEXT        run in the folder that has node_modules
//
// Requests and replies are those of peer_workers.py; OMP_NUM_THREADS is the number of threads.
import fs from "fs";
import {createRequire} from "module";
import path from "path";
import {createInterface} from "readline";
import {pathToFileURL} from "url";

const packages = createRequire(path.join(process.cwd(), "package.json"));
const entry = packages.resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry));
const [, , modelPath, contextSize] = process.argv;
const threads = +process.env.OMP_NUM_THREADS;
const llama = await getLlama({gpu: false, build: "never", maxThreads: threads, logLevel: "error"});
const imported = peakMemory();
const model = await llama.loadModel({modelPath});
const context = await model.createContext({threads, contextSize: +contextSize});

function peakMemory() {
    return 1024 * +/VmHWM:\s*(\d+) kB/.exec(fs.readFileSync("/proc/self/status", "utf8"))[1];
}

function clocks() {
    const {user, system} = process.cpuUsage();
    return [(user + system) / 1e6, performance.now() / 1e3];
}

function perSecond(tokens, began, ended) {
    return ended.map((end, clock) => tokens / (end - began[clock]));
}

const calls = {
    hello: () => `llama.cpp ${llama.llamaCppRelease.release}`,
    memory: () => peakMemory() - imported,
    // A greedy answer of `count` tokens, which no end token ends, from an empty cache.
    async answer({ids, new: count}) {
        const sequence = context.getSequence(), made = [], began = clocks();
        let read;
        for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
            read ??= clocks();
            if (made.push(token) === count) break;
        }
        const done = clocks();
        await sequence.dispose();
        return {
            ids: made,
            steps: made.length,
            prompts: perSecond(ids.length, began, read),
            answers: perSecond(made.length - 1, read, done)
        };
    }
};

for await (const line of createInterface({input: process.stdin})) {
    const {call, ...request} = JSON.parse(line);
    process.stdout.write(JSON.stringify(await calls[call](request)) + "\n");
}
process.exit(0);
